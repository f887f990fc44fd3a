//! Fresh processes for arms, and what else the machine does meanwhile.

use super::job::{Job, Reply};
use crate::run::INTERRUPTED;
use anyhow::{Context, bail};
use serde::Serialize;
use signal_hook::consts::{SIGINT, SIGTERM};
use std::io::Read;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};
use sysinfo::{Pid, ProcessesToUpdate, System};

/// Other programs that use more than this of one core, in percent, are told.
pub(super) const FOREIGN_CPU_TOLD: f64 = 20.0;
/// Others that use more than this of the GPU, in percent, are told.
pub(super) const FOREIGN_GPU_TOLD: f64 = 5.0;

/// What other programs used while an arm ran.
#[derive(Clone, Copy, Debug, Default, Serialize)]
pub(super) struct ForeignLoad {
    /// Of one core, in percent: the median of samples. `None` if the arm was too short for one.
    pub(super) cpu_percent: Option<f64>,
    /// Of an NVIDIA GPU, in percent, just before the arm. `None` where nobody tells.
    pub(super) gpu_percent: Option<f64>,
}

impl ForeignLoad {
    /// What is to be told of it.
    pub(super) fn words(&self) -> Option<String> {
        let cpu = self.cpu_percent.filter(|&percent| percent > FOREIGN_CPU_TOLD);
        let gpu = self.gpu_percent.filter(|&percent| percent > FOREIGN_GPU_TOLD);
        let cpu = cpu.map(|percent| format!("{percent:.0} % of a core"));
        let gpu = gpu.map(|percent| format!("{percent:.0} % of the GPU"));
        let parts: Vec<String> = cpu.into_iter().chain(gpu).collect();
        (!parts.is_empty()).then(|| format!("other programs used {}", parts.join(" and ")))
    }
}

/// Starts processes of this program, one after the other.
pub(super) struct Processes {
    pub(super) model: PathBuf,
    pub(super) device: String,
    pub(super) threads: Option<u16>,
    cancel: Arc<AtomicBool>,
    system: System,
}

impl Processes {
    /// For a model and a device. From now on Ctrl-C ends the process that runs, and then this one.
    pub(super) fn new(
        model: PathBuf,
        device: String,
        threads: Option<u16>,
    ) -> anyhow::Result<Self> {
        let cancel = Arc::new(AtomicBool::new(false));
        for signal in [SIGINT, SIGTERM] {
            // The second one ends the program at once.
            signal_hook::flag::register_conditional_shutdown(signal, INTERRUPTED, cancel.clone())?;
            signal_hook::flag::register(signal, cancel.clone())?;
        }
        Ok(Self { model, device, threads, cancel, system: System::new()? })
    }

    /// Has a process do a job.
    ///
    /// # Errors
    /// If it fails: with its last words.
    pub(super) fn run(&mut self, job: &Job) -> anyhow::Result<(Reply, ForeignLoad)> {
        self.stop_if_interrupted();
        let program = std::env::current_exe().context("cannot tell where this program is")?;
        let mut command = Command::new(program);
        command.arg("bench-job").arg(serde_json::to_string(job)?);
        command.arg("--model").arg(&self.model).arg("--device").arg(&self.device);
        command.args(["--color", "never"]);
        if let Some(threads) = self.threads {
            command.args(["--threads", &threads.to_string()]);
        }
        let gpu_percent =
            if self.device.starts_with("cuda") { gpu_use(&self.device) } else { None };
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = Killed(command.spawn().context("cannot start a process of this program")?);
        let out = reader(child.0.stdout.take());
        let err = reader(child.0.stderr.take());
        let (status, cpu_percent) = self.watch(&mut child.0)?;
        let [out, err] = [out, err].map(|text| text.join().unwrap_or_default());
        if !status.success() {
            self.stop_if_interrupted();
            let last = err.lines().rfind(|line| !line.trim().is_empty()).unwrap_or("no word");
            bail!("{} (process: {status})", last.strip_prefix("error: ").unwrap_or(last));
        }
        let reply = serde_json::from_str(&out).context("what a bench process printed")?;
        Ok((reply, ForeignLoad { cpu_percent, gpu_percent }))
    }

    fn stop_if_interrupted(&self) {
        if self.cancel.load(Ordering::Relaxed) {
            crate::output::note("stopped; nothing was written");
            std::process::exit(INTERRUPTED);
        }
    }

    /// Waits for a process: how it ended, and what others used of one core meanwhile.
    fn watch(
        &mut self,
        child: &mut Child,
    ) -> anyhow::Result<(std::process::ExitStatus, Option<f64>)> {
        const LOOK: Duration = Duration::from_millis(20);
        const SAMPLE: Duration = Duration::from_millis(500);
        let pids = [Pid::from_u32(child.id()), Pid::from_u32(std::process::id())];
        let mut samples = vec![];
        let mut last: Option<Instant> = None;
        loop {
            if let Some(status) = child.try_wait()? {
                return Ok((status, super::median(&mut samples)));
            }
            if self.cancel.load(Ordering::Relaxed) {
                child.kill()?;
                child.wait()?;
                self.stop_if_interrupted();
            }
            if last.is_none_or(|last| last.elapsed() >= SAMPLE) {
                self.system.refresh_cpu_usage();
                self.system.refresh_processes(ProcessesToUpdate::Some(&pids), true);
                if last.is_some() {
                    let all: f64 = self.system.cpus().iter().map(|c| f64::from(c.usage())).sum();
                    let usage =
                        |pid| self.system.process(pid).map_or(0.0, |p| f64::from(p.cpu_usage()));
                    let own: f64 = pids.into_iter().map(usage).sum();
                    samples.push((all - own).max(0.0));
                }
                last = Some(Instant::now());
            }
            std::thread::sleep(LOOK);
        }
    }
}

/// A process that does not outlive this value.
struct Killed(Child);

impl Drop for Killed {
    fn drop(&mut self) {
        // It fails where the process has ended.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn reader(stream: Option<impl Read + Send + 'static>) -> std::thread::JoinHandle<String> {
    std::thread::spawn(move || {
        let mut bytes = vec![];
        if let Some(mut stream) = stream {
            // What was read before an error is still worth telling.
            let _ = stream.read_to_end(&mut bytes);
        }
        String::from_utf8_lossy(&bytes).into_owned()
    })
}

/// What others use of an NVIDIA GPU, as its driver's tool tells while nothing of ours runs there.
fn gpu_use(device: &str) -> Option<f64> {
    let ordinal = device.strip_prefix("cuda:").unwrap_or("0");
    let output = Command::new("nvidia-smi")
        .args(["--query-gpu=utilization.gpu", "--format=csv,noheader,nounits", "-i", ordinal])
        .stdin(Stdio::null())
        .output()
        .ok()?;
    String::from_utf8(output.stdout).ok()?.trim().parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn load_of_others_is_told_where_it_matters() {
        let load = |cpu_percent, gpu_percent| ForeignLoad { cpu_percent, gpu_percent }.words();
        assert_eq!(load(None, None), None);
        assert_eq!(load(Some(FOREIGN_CPU_TOLD), Some(FOREIGN_GPU_TOLD)), None);
        let words = load(Some(150.4), Some(37.0)).unwrap();
        assert_eq!(words, "other programs used 150 % of a core and 37 % of the GPU");
    }
}
