//! `doctor` on devices of a script.

use super::*;
use crate::args::ModelArgs;
use crate::device::{Driver, Gpu, Unusable};
use calla_engine::Machine;
use calla_gpu::{BufferId, Device, DeviceError, Dispatch, Range};
use calla_gpu_host::{HostDevice, Options};

/// The host driver, which flips a bit of what one entry point writes.
struct Flipping {
    device: HostDevice,
    entry: Option<&'static str>,
}

impl Device for Flipping {
    fn allocate(&mut self, label: &str, bytes: u64) -> Result<BufferId, DeviceError> {
        self.device.allocate(label, bytes)
    }

    fn release(&mut self, buffer: BufferId) -> Result<(), DeviceError> {
        self.device.release(buffer)
    }

    fn write(&mut self, range: Range, bytes: &[u8]) -> Result<(), DeviceError> {
        self.device.write(range, bytes)
    }

    fn read(&mut self, range: Range, bytes: &mut [u8]) -> Result<(), DeviceError> {
        self.device.read(range, bytes)
    }

    fn run(&mut self, dispatches: &[Dispatch], stages: &[usize]) -> Result<(), DeviceError> {
        self.device.run(dispatches, stages)?;
        for dispatch in dispatches.iter().filter(|d| Some(d.entry) == self.entry) {
            for binding in dispatch.bindings.iter().filter(|b| b.access.writes()) {
                let byte = Range { start: binding.range.start + 3, len: 1, ..binding.range };
                let mut value = [0];
                self.device.read(byte, &mut value)?;
                self.device.write(byte, &[value[0] ^ 0x40])?;
            }
        }
        Ok(())
    }

    fn machine_code(&self) -> Option<String> {
        Some("3 embedded, 1 from the cache".to_owned())
    }
}

/// A machine whose first NVIDIA GPU is the host driver.
struct Scripted {
    entry: Option<&'static str>,
}

fn memory(bytes: u64) -> Machine {
    Machine { total: bytes, available: bytes, is_mac: false, gpu_limit_setting: None }
}

impl Hardware for Scripted {
    fn host(&self) -> anyhow::Result<Machine> {
        Ok(memory(8 << 30))
    }

    fn gpus(&self) -> Vec<Wanted> {
        vec![Wanted::Cuda(0)]
    }

    fn open(&self, wanted: Wanted) -> Result<Gpu, Unusable> {
        if wanted != Wanted::Cuda(0) {
            return Err(Unusable::NoGpu(wanted));
        }
        let device = HostDevice::new(&Options::default()).expect("asked for before");
        let device = Flipping { device, entry: self.entry };
        Ok(Gpu {
            wanted,
            name: "a GPU of /home/jane/scripts".to_owned(),
            memory: memory(2 << 30),
            remark: None,
            opened: Some(Box::new(Driver { device, name: "scripted" })),
        })
    }
}

fn args(device: Wanted) -> DoctorArgs {
    let model =
        ModelArgs { model: None, device, threads: Some(1), ctx: None, gpu_trace: None, isa: None };
    DoctorArgs { no_bench: true, json: false, model }
}

/// Whether this machine can run kernels on its processor; says why not.
fn has_host_driver() -> bool {
    match HostDevice::new(&Options::default()) {
        Ok(_) => true,
        Err(error) => {
            println!("skipped: {error}");
            false
        }
    }
}

fn report(entry: Option<&'static str>, wanted: Wanted) -> Report {
    let hardware = Arc::new(Scripted { entry });
    examine(hardware, &args(wanted), &mut |_| {}).expect("a report").scrubbed()
}

#[test]
fn a_good_machine_is_well_and_its_report_names_no_folder() {
    if !has_host_driver() {
        return;
    }
    let report = report(None, Wanted::Auto);
    assert_eq!(report.problems, [""; 0]);
    let text = report.markdown();
    assert!(text.contains("All is well."), "{text}");
    assert!(text.contains("- metal: not used: metal is no GPU"), "{text}");
    assert!(text.contains("a GPU of .../scripts, 23 of 23 kernels right"), "{text}");
    assert!(text.contains("; machine code: 3 embedded, 1 from the cache\n"), "{text}");
    assert!(
        text.contains("| cuda | expert_qmm | ") && text.contains("| cpu | linear | "),
        "{text}"
    );
    assert!(!text.contains("jane"), "{text}");
    let json = serde_json::to_value(&report).expect("JSON");
    assert_eq!(json["devices"].as_array().expect("a list").len(), 3);
    assert!(json["commit"].is_string() && json["memory_bytes"].is_u64());
}

#[test]
fn a_bit_that_flips_is_reported_with_kernel_and_error() {
    if !has_host_driver() {
        return;
    }
    let report = report(Some("qmv_4"), Wanted::Cuda(0));
    let [problem] = &report.problems[..] else { panic!("{:?}", report.problems) };
    assert!(problem.contains("kernel qmv: 4 rows of 320, 4 bits: "), "{problem}");
    let text = report.markdown();
    assert!(text.contains("22 of 23 kernels right"), "{text}");
    assert!(text.contains("| cuda | qmv | - | - | **wrong**: 4 rows of 320"), "{text}");
    assert!(text.contains("### Wrong (1)"), "{text}");
}

#[test]
fn a_device_that_was_named_has_to_be_there() {
    let report = report(None, Wanted::Metal);
    assert_eq!(report.problems, ["metal: metal is no GPU"]);
    assert!(report.markdown().contains("- metal: not used"));
}

#[test]
fn a_gpu_of_any_kind_is_measured() {
    if !has_host_driver() {
        return;
    }
    let mut device = HostDevice::new(&Options::default()).expect("it was there before");
    assert_eq!(bench::Sizes::fitting(80 << 30).read, 131_072);
    assert_eq!(bench::Sizes::fitting(1 << 20).read, 113);
    // The processor is slow.
    let sizes = bench::Sizes { read: 64, weights: 64, tokens: 64 };
    let speed = bench::gpu(&mut device, sizes, Duration::from_millis(1)).expect("rates");
    assert!(speed.read_bytes_per_s > 1e3 && speed.product_flops_per_s > 1e3, "{speed:?}");
    assert!(speed.read_bytes_per_s.is_finite() && speed.product_flops_per_s.is_finite());
}

#[test]
fn the_processor_is_measured() {
    let speed = bench::cpu(1, Duration::from_millis(10)).expect("rates");
    assert!(speed.read_bytes_per_s > 1e6 && speed.product_flops_per_s > 1e6, "{speed:?}");
}
