//! Which device takes a model.

use super::{Gpu, Hardware, OpenGpu, Unusable, Wanted};
use crate::output;
use anyhow::Context;
use calla_conformance::self_test;
use calla_engine::Machine;
use std::sync::Arc;

/// Bytes of a stored key or value, and of an element of the convolution window: f32 in host memory.
pub(crate) const HOST_ELEMENT_BYTES: usize = 4;
/// The same on a GPU: bf16.
const GPU_ELEMENT_BYTES: usize = 2;

/// The devices that a model may run on, of those that this machine has.
pub(crate) struct Devices {
    hardware: Arc<dyn Hardware>,
    /// Whether the choice is left to the program.
    is_auto: bool,
    gpus: Vec<Gpu>,
    /// Where to compute if no GPU does: `Cpu` or `Reference`.
    host: Option<Target>,
    host_memory: Machine,
    /// GPUs that were looked for in vain, and what was said of them.
    passed: Vec<String>,
}

/// One of the devices.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Target {
    Cpu,
    Reference,
    /// Its index among those found.
    Gpu(usize),
}

/// Where a model may lie.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Place {
    pub(crate) target: Target,
    pub(crate) memory: Machine,
}

impl Place {
    pub(crate) fn is_gpu(&self) -> bool {
        matches!(self.target, Target::Gpu(_))
    }

    /// Bytes of a stored key or value, and of an element of the convolution window.
    pub(crate) fn element_bytes(&self) -> usize {
        if self.is_gpu() { GPU_ELEMENT_BYTES } else { HOST_ELEMENT_BYTES }
    }
}

impl Devices {
    /// Finds what `wanted` names: one device, or for `auto` all that may do.
    ///
    /// # Errors
    /// If a device that is named cannot be used, or the system does not tell its memory.
    pub(crate) fn find(hardware: Arc<dyn Hardware>, wanted: Wanted) -> anyhow::Result<Self> {
        let host_memory = hardware.host()?;
        let (is_auto, host) = (wanted == Wanted::Auto, None);
        let mut found = Self { hardware, is_auto, gpus: vec![], host, host_memory, passed: vec![] };
        match wanted {
            Wanted::Cpu => found.host = Some(Target::Cpu),
            Wanted::Reference => found.host = Some(Target::Reference),
            Wanted::Metal | Wanted::Cuda(_) => found.gpus.push(found.open(wanted)?),
            Wanted::Auto => {
                for wanted in found.hardware.gpus() {
                    // Of several NVIDIA GPUs one will do: to open one takes a while.
                    let is_cuda = |gpu: &Gpu| matches!(gpu.wanted, Wanted::Cuda(_));
                    if matches!(wanted, Wanted::Cuda(_)) && found.gpus.iter().any(is_cuda) {
                        continue;
                    }
                    match found.hardware.open(wanted).and_then(tested) {
                        Ok(gpu) => found.gpus.push(gpu),
                        Err(why) => found.passed.push(why.brief()),
                    }
                }
                found.host = Some(Target::Cpu);
            }
        }
        Ok(found)
    }

    /// A GPU that has to be there.
    fn open(&self, wanted: Wanted) -> anyhow::Result<Gpu> {
        self.hardware.open(wanted).with_context(|| {
            format!("--device {wanted} cannot be used here; --device cpu runs everywhere")
        })
    }

    /// The devices, best first.
    fn places(&self) -> impl Iterator<Item = Place> {
        let gpus = self.gpus.iter().enumerate();
        let gpus = gpus.map(|(i, gpu)| Place { target: Target::Gpu(i), memory: gpu.memory });
        let memory = self.host_memory;
        gpus.chain(self.host.map(|target| Place { target, memory }))
    }

    /// The first device for which `plan` finds a way, and the way. What `plan` said of those before it comes last.
    ///
    /// # Errors
    /// What `plan` says of the last one.
    pub(crate) fn choose<T>(
        &self,
        mut plan: impl FnMut(Place) -> anyhow::Result<T>,
    ) -> anyhow::Result<(T, Vec<String>)> {
        let mut passed = vec![];
        let places: Vec<Place> = self.places().collect();
        for (i, &place) in places.iter().enumerate() {
            match plan(place) {
                Ok(planned) => return Ok((planned, passed)),
                Err(error) if i + 1 == places.len() => {
                    passed.iter().for_each(|reason| output::note(reason));
                    return Err(error);
                }
                Err(error) => {
                    passed.push(format!("{}: {}", self.name(place.target), output::chain(&error)));
                }
            }
        }
        anyhow::bail!("no device was found: this is a bug")
    }

    /// The memory of the processor.
    pub(crate) fn host_memory(&self) -> &Machine {
        &self.host_memory
    }

    /// How `--device` names a device.
    pub(crate) fn wanted(&self, target: Target) -> Wanted {
        match target {
            Target::Cpu => Wanted::Cpu,
            Target::Reference => Wanted::Reference,
            Target::Gpu(i) => self.gpus[i].wanted,
        }
    }

    /// What a device is called.
    pub(crate) fn name(&self, target: Target) -> &str {
        match target {
            Target::Cpu => "CPU",
            Target::Reference => "f32 reference",
            Target::Gpu(i) => &self.gpus[i].name,
        }
    }

    /// Takes an open GPU, with its name. It is opened again if it was taken before.
    ///
    /// # Errors
    /// If it cannot be any more.
    pub(crate) fn take(&mut self, index: usize) -> anyhow::Result<(Box<dyn OpenGpu>, String)> {
        let wanted = self.gpus[index].wanted;
        let opened = match self.gpus[index].opened.take() {
            Some(opened) => opened,
            None => self.open(wanted)?.opened.context("a GPU that was just opened")?,
        };
        let name = self.gpus[index].name.clone();
        if let Some(remark) = &self.gpus[index].remark {
            output::note(&format!("{name}: {remark}"));
        }
        Ok((opened, name))
    }

    /// Leaves only the device that was chosen: a model that was loaded once is loaded there again.
    pub(crate) fn settle(&mut self, target: Target) {
        let mut index = 0;
        self.gpus.retain(|_| {
            index += 1;
            target == Target::Gpu(index - 1)
        });
        self.host = self.host.filter(|&host| host == target);
    }

    /// Asks anew how much memory there is, of the processor and of a GPU that was given back meanwhile; that one has to pass
    /// its self-test.
    ///
    /// # Errors
    /// If a GPU is no longer there, its self-test fails, or the system does not tell.
    pub(crate) fn refresh(&mut self) -> anyhow::Result<()> {
        self.host_memory = self.hardware.host()?;
        for index in 0..self.gpus.len() {
            if self.gpus[index].opened.is_none() {
                let mut gpu = self.open(self.gpus[index].wanted)?;
                // It may have been given up because it failed.
                if let Some(opened) = &mut gpu.opened {
                    self_test(opened.device()).map_err(Unusable::SelfTest)?;
                }
                self.gpus[index] = gpu;
            }
        }
        Ok(())
    }

    /// The line that says what `auto` came to, and why: `words` for the device, `passed` from [`Devices::choose`].
    /// Nothing where the user has said it.
    pub(crate) fn announcement(
        &self,
        place: Place,
        words: &str,
        passed: &[String],
    ) -> Option<String> {
        let first =
            if place.is_gpu() { "it is there and holds the model" } else { "no GPU is used" };
        let mut reasons = vec![first.to_owned()];
        reasons.extend(self.passed.iter().chain(passed).cloned());
        self.is_auto.then(|| format!("device: {words} ({})", reasons.join("; ")))
    }
}

/// A GPU that nobody named is used if its kernels are right. Those of CUDA have been on such hardware; that driver would
/// compile for a minute.
fn tested(mut gpu: Gpu) -> Result<Gpu, Unusable> {
    if let (Wanted::Metal, Some(opened)) = (gpu.wanted, &mut gpu.opened) {
        self_test(opened.device())?;
    }
    Ok(gpu)
}

#[cfg(test)]
mod tests {
    use super::*;
    use anyhow::bail;

    /// A machine of a script: its GPUs with their free bytes; others cannot be opened.
    struct Scripted {
        gpus: Vec<(Wanted, u64)>,
        tried: Vec<Wanted>,
    }

    fn memory(bytes: u64) -> Machine {
        Machine { total: bytes, available: bytes, is_mac: false, gpu_limit_setting: None }
    }

    impl Hardware for Scripted {
        fn host(&self) -> anyhow::Result<Machine> {
            Ok(memory(64))
        }

        fn gpus(&self) -> Vec<Wanted> {
            self.tried.clone()
        }

        fn open(&self, wanted: Wanted) -> Result<Gpu, Unusable> {
            let found = self.gpus.iter().find(|(gpu, _)| *gpu == wanted);
            let &(wanted, bytes) = found.ok_or(Unusable::NoGpu(wanted))?;
            let (name, memory) = (format!("GPU {wanted}"), memory(bytes));
            Ok(Gpu { wanted, name, memory, remark: None, opened: None })
        }
    }

    const BOTH: [Wanted; 2] = [Wanted::Metal, Wanted::Cuda(0)];

    fn devices(gpus: &[(Wanted, u64)], wanted: Wanted) -> anyhow::Result<Devices> {
        let hardware = Scripted { gpus: gpus.to_vec(), tried: BOTH.to_vec() };
        Devices::find(Arc::new(hardware), wanted)
    }

    /// Where a model of `bytes` goes, and the line about it.
    fn place(devices: &Devices, bytes: u64) -> anyhow::Result<(Target, Option<String>)> {
        let (place, passed) = devices.choose(|place| {
            let free = place.memory.available;
            if bytes > free {
                bail!("it needs {bytes} bytes, {free} are free");
            }
            Ok(place)
        })?;
        Ok((place.target, devices.announcement(place, devices.name(place.target), &passed)))
    }

    #[test]
    fn auto_takes_the_first_gpu_that_holds_the_model() {
        let gpus = [(Wanted::Metal, 10), (Wanted::Cuda(0), 20)];
        let devices = devices(&gpus, Wanted::Auto).unwrap();
        assert_eq!(place(&devices, 10).unwrap().0, Target::Gpu(0));
        let (target, line) = place(&devices, 11).unwrap();
        assert_eq!(target, Target::Gpu(1));
        let line = line.unwrap();
        assert!(line.starts_with("device: GPU cuda ("), "{line}");
        assert!(line.contains("GPU metal: it needs 11 bytes, 10 are free"), "{line}");
        let (target, line) = place(&devices, 21).unwrap();
        assert_eq!(target, Target::Cpu);
        let line = line.unwrap();
        for word in ["device: CPU", "no GPU", "10 are free", "20 are free"] {
            assert!(line.contains(word) && !line.contains('\n'), "{line}");
        }
        let refused = place(&devices, 65).unwrap_err().to_string();
        assert_eq!(refused, "it needs 65 bytes, 64 are free");
    }

    #[test]
    fn auto_says_why_a_gpu_cannot_be_opened() {
        let devices = devices(&[(Wanted::Cuda(0), 20)], Wanted::Auto).unwrap();
        let (target, line) = place(&devices, 1).unwrap();
        assert_eq!(target, Target::Gpu(0));
        assert!(line.unwrap().contains("metal is no GPU"));
    }

    #[test]
    fn a_device_that_is_named_is_taken_or_refused_and_never_replaced() {
        let gpus = [(Wanted::Cuda(0), 20)];
        let named = |wanted| devices(&gpus, wanted);
        let Err(error) = named(Wanted::Metal) else { panic!("there is no Metal") };
        let error = output::chain(&error);
        assert!(error.contains("--device metal cannot be used here"), "{error}");
        assert!(error.contains("--device cpu runs everywhere"), "{error}");
        assert!(named(Wanted::Cuda(1)).is_err());
        let cuda = named(Wanted::Cuda(0)).unwrap();
        assert_eq!(place(&cuda, 20).unwrap(), (Target::Gpu(0), None));
        assert!(place(&cuda, 21).is_err());
        let cpu = named(Wanted::Cpu).unwrap();
        assert_eq!(place(&cpu, 1).unwrap(), (Target::Cpu, None));
        let reference = named(Wanted::Reference).unwrap();
        assert_eq!(place(&reference, 1).unwrap(), (Target::Reference, None));
    }

    #[test]
    fn a_model_is_loaded_again_where_it_was() {
        let gpus = [(Wanted::Metal, 10), (Wanted::Cuda(0), 20)];
        let mut devices = devices(&gpus, Wanted::Auto).unwrap();
        devices.settle(Target::Gpu(1));
        devices.refresh().unwrap();
        assert_eq!(place(&devices, 5).unwrap().0, Target::Gpu(0));
        assert_eq!(devices.name(Target::Gpu(0)), "GPU cuda");
        assert!(place(&devices, 21).is_err());
        devices.settle(Target::Cpu);
        assert!(devices.places().next().is_none());
    }
}
