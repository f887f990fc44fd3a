//! A digest of a whole checkpoint: for state that outlives the program.

use crate::checkpoint::Checkpoint;

impl Checkpoint {
    /// A BLAKE3 digest of the configuration and of every text tensor's name, type, shape and bytes: 64
    /// hexadecimal digits. It reads all weights once, on all cores.
    #[must_use]
    pub fn digest(&self) -> String {
        let mut hasher = blake3::Hasher::new();
        hasher.update(format!("{:?}", self.config()).as_bytes());
        for (name, tensor) in self.text_tensors() {
            let (dtype, shape) = (tensor.entry.dtype, tensor.shape());
            hasher.update(format!("\0{name}\0{dtype:?}{shape:?}\0").as_bytes());
            hasher.update_rayon(&tensor.bytes());
        }
        hasher.finalize().to_hex().to_string()
    }
}
