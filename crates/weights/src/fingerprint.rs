//! What tells a checkpoint from others without reading all of it: for state that outlives the program.

use crate::checkpoint::Checkpoint;

/// Bytes looked at in a tensor's beginning, middle and end.
const SAMPLE_BYTES: usize = 1024;

impl Checkpoint {
    /// A digest of the configuration, of every tensor's name, type and shape, and of samples of its values
    /// (a tensor's first, middle and last kilobyte): 64 hexadecimal digits.
    ///
    /// A retrained, merged or requantised tensor differs nearly everywhere, so it differs in the samples. Bytes
    /// that were damaged between them go unnoticed; [`Checkpoint::verify`](crate::verify) finds these.
    #[must_use]
    pub fn fingerprint(&self) -> String {
        let mut hasher = blake3::Hasher::new();
        hasher.update(format!("{:?}", self.config()).as_bytes());
        for (name, tensor) in self.text_tensors() {
            let bytes = tensor.bytes();
            hasher.update(
                format!("{name}\0{:?}{:?}\0", tensor.entry.dtype, tensor.shape()).as_bytes(),
            );
            let end = bytes.len().saturating_sub(SAMPLE_BYTES);
            for start in [0, end / 2, end] {
                hasher.update(&bytes[start..(start + SAMPLE_BYTES).min(bytes.len())]);
            }
        }
        hasher.finalize().to_hex().to_string()
    }
}
