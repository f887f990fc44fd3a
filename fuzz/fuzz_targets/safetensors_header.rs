//! The safetensors header reader on arbitrary bytes: no panic, and never laxer than the reference crate.
//!
//! What the reader accepts must be whole: every tensor lies in the file and has the length of its shape,
//! and the `safetensors` crate reads the same tensors from the same bytes.

#![no_main]

use libfuzzer_sys::fuzz_target;
use safetensors::SafeTensors;

fuzz_target!(|file: &[u8]| {
    let Ok(tensors) = calla_weights::header::read(file) else { return };
    let reference = SafeTensors::deserialize(file).expect("the reference crate accepts it too");
    assert_eq!(tensors.len(), reference.len());
    let mut end = 8 + u64::from_le_bytes(file[..8].try_into().unwrap()) as usize;
    for tensor in tensors {
        assert_eq!(tensor.range.start, end, "the tensors cover the data in order");
        end = tensor.range.end;
        let view = reference.tensor(&tensor.name).expect("it has the same names");
        assert_eq!(view.dtype(), tensor.dtype);
        assert_eq!(view.shape(), tensor.shape);
        assert_eq!(view.data(), &file[tensor.range]);
    }
    assert_eq!(end, file.len());
});
