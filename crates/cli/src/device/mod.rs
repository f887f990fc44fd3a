//! The device that a model runs on: what `--device` asks for, what this machine has, and why the rest of it is not used.

mod choice;
mod hardware;
mod wanted;

pub(crate) use choice::{Devices, HOST_ELEMENT_BYTES, Place, Target};
#[cfg(test)]
pub(crate) use hardware::Driver;
pub(crate) use hardware::{Gpu, Hardware, MappedNetwork, OpenGpu, System, Unusable, cuda};
pub(crate) use wanted::{Wanted, WantedParser};
