//! What was found, as data and as Markdown for a bug report.

use super::facts::Facts;
use super::scrub::scrub;
use crate::device::Wanted;
use crate::machine::bytes;
use crate::output;
use serde::Serialize;
use std::fmt::Write;

/// All that was found.
#[derive(Serialize)]
pub(super) struct Report {
    #[serde(flatten)]
    facts: Facts,
    devices: Vec<Examined>,
    /// A model that was run.
    model: Option<ModelRun>,
    /// What is wrong.
    pub(super) problems: Vec<String>,
}

/// A device.
#[derive(Serialize)]
pub(super) struct Examined {
    /// As `--device` names it.
    pub(super) device: String,
    /// What it calls itself.
    pub(super) name: Option<String>,
    /// Why it is not used.
    pub(super) not_used: Option<String>,
    /// What of it is not used, and why.
    pub(super) remark: Option<String>,
    /// Where the machine code of its kernels came from, where that is not always the same.
    pub(super) machine_code: Option<String>,
    /// What a model and its state may take there.
    pub(super) limit_bytes: Option<u64>,
    pub(super) kernels: Vec<Kernel>,
    /// Rates, or why they could not be measured; nothing if they were not.
    pub(super) speed: Option<Result<Speed, String>>,
}

/// A kernel that was held to the reference.
#[derive(Serialize)]
pub(super) struct Kernel {
    pub(super) name: &'static str,
    /// Its entry points.
    pub(super) entries: Vec<&'static str>,
    /// How far it is off, relative to the root mean square of the expected row.
    pub(super) off: Option<f32>,
    pub(super) allowed: Option<f32>,
    /// What is wrong with it.
    pub(super) error: Option<String>,
}

impl Kernel {
    pub(super) fn is_right(&self) -> bool {
        self.error.is_none()
    }
}

/// Rates of a device.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub(super) struct Speed {
    /// Bytes that are read a second: on a GPU weights, in a product with one row.
    pub(super) read_bytes_per_s: f64,
    /// Operations a second in a product of 4-bit weights with many rows.
    pub(super) product_flops_per_s: f64,
}

/// Rates of a model.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub(super) struct ModelSpeed {
    pub(super) prompt_tokens: usize,
    pub(super) prefill_tokens_per_s: f64,
    pub(super) decode_tokens_per_s: f64,
}

#[derive(Serialize)]
struct ModelRun {
    device: String,
    #[serde(flatten)]
    speed: ModelSpeed,
}

impl Examined {
    pub(super) fn new(wanted: Wanted) -> Self {
        Self {
            device: wanted.to_string(),
            name: None,
            not_used: None,
            remark: None,
            machine_code: None,
            limit_bytes: None,
            kernels: vec![],
            speed: None,
        }
    }
}

impl Report {
    pub(super) fn new(facts: Facts) -> Self {
        Self { facts, devices: vec![], model: None, problems: vec![] }
    }

    /// Adds a device. That it is not used is wrong if it was `named`.
    pub(super) fn add(&mut self, examined: Examined, named: bool) {
        let name = examined.name.as_ref().unwrap_or(&examined.device);
        let mut problem = |text: String| self.problems.push(format!("{name}: {text}"));
        if let (Some(why), true) = (&examined.not_used, named) {
            problem(why.clone());
        }
        for kernel in &examined.kernels {
            if let Some(error) = &kernel.error {
                problem(format!("kernel {}: {error}", kernel.name));
            }
        }
        if let Some(Err(error)) = &examined.speed {
            problem(format!("its speed could not be measured: {error}"));
        }
        self.devices.push(examined);
    }

    /// Adds a model that was run on a device.
    pub(super) fn add_model(&mut self, run: anyhow::Result<(String, ModelSpeed)>) {
        match run {
            Ok((device, speed)) => self.model = Some(ModelRun { device, speed }),
            Err(error) => {
                self.problems.push(format!("the model does not run: {}", output::chain(&error)));
            }
        }
    }

    /// Without folders and user names.
    pub(super) fn scrubbed(mut self) -> Self {
        let clean = |text: &mut String| *text = scrub(text);
        self.problems.iter_mut().for_each(clean);
        for device in &mut self.devices {
            let texts = [&mut device.name, &mut device.not_used, &mut device.remark];
            texts.into_iter().flatten().for_each(clean);
            device.kernels.iter_mut().filter_map(|kernel| kernel.error.as_mut()).for_each(clean);
            if let Some(Err(error)) = &mut device.speed {
                clean(error);
            }
        }
        self
    }

    /// The report for a bug report.
    pub(super) fn markdown(&self) -> String {
        let facts = &self.facts;
        let mut out = format!("## calla doctor, {} ({})\n\n", facts.version, facts.commit);
        // Writing to a string cannot fail.
        let mut line = |text: String| {
            let _ = writeln!(out, "{}", output::printable(&text));
        };
        line(format!("- system: {}", facts.system));
        let cores = if facts.cores == 1 { "core" } else { "cores" };
        line(format!("- processor: {}, {} {cores}", facts.processor, facts.cores));
        line(format!("- instruction sets: {}", facts.features.join(" ")));
        line(format!(
            "- memory: {}, {} available, {} for a model",
            bytes(facts.memory_bytes),
            bytes(facts.available_bytes),
            bytes(facts.limit_bytes)
        ));
        if let Some(limit) = facts.gpu_working_set_bytes {
            line(format!("- working set of the GPU: {}", bytes(limit)));
        }
        line("\n### Devices\n".to_owned());
        for device in &self.devices {
            line(device_line(device));
        }
        line("\n### Kernels against the reference\n".to_owned());
        line("| device | kernel | off by | allowed | |\n|---|---|---|---|---|".to_owned());
        for device in &self.devices {
            for kernel in &device.kernels {
                line(kernel_row(&device.device, kernel));
            }
        }
        self.speed_lines(&mut line);
        line(match self.problems.len() {
            0 => "\nAll is well.".to_owned(),
            count => format!("\n### Wrong ({count})\n"),
        });
        for problem in &self.problems {
            line(format!("- {}", cell(problem)));
        }
        out
    }

    fn speed_lines(&self, line: &mut dyn FnMut(String)) {
        let measured =
            self.devices.iter().filter_map(|device| Some((device, device.speed.as_ref()?)));
        let measured: Vec<_> = measured.collect();
        if measured.is_empty() && self.model.is_none() {
            return;
        }
        line("\n### Speed\n".to_owned());
        for (device, speed) in measured {
            line(match speed {
                Ok(speed) => format!(
                    "- {}: reads {:.1} GB/s; products of 4-bit weights {:.2} TFLOP/s",
                    device.device,
                    speed.read_bytes_per_s / 1e9,
                    speed.product_flops_per_s / 1e12
                ),
                Err(error) => format!("- {}: not measured: {}", device.device, cell(error)),
            });
        }
        if let Some(ModelRun { device, speed }) = &self.model {
            line(format!(
                "- the model on {device}: prompt of {} tokens {:.1} tokens/s, reply {:.1} tokens/s",
                speed.prompt_tokens, speed.prefill_tokens_per_s, speed.decode_tokens_per_s
            ));
        }
    }
}

fn device_line(device: &Examined) -> String {
    let Some(name) = &device.name else {
        let why = device.not_used.as_deref().unwrap_or("it was not found");
        return format!("- {}: not used: {}", device.device, cell(why));
    };
    let right = device.kernels.iter().filter(|kernel| kernel.is_right()).count();
    let mut text =
        format!("- {}: {name}, {right} of {} kernels right", device.device, device.kernels.len());
    if let Some(limit) = device.limit_bytes {
        text += &format!(", {} for a model", bytes(limit));
    }
    if let Some(origins) = &device.machine_code {
        text += &format!("; machine code: {origins}");
    }
    if let Some(remark) = &device.remark {
        text += &format!("; {}", cell(remark));
    }
    text
}

fn kernel_row(device: &str, kernel: &Kernel) -> String {
    let number = |value: Option<f32>| value.map_or("-".to_owned(), |value| format!("{value:.1e}"));
    let verdict = match &kernel.error {
        None => "right".to_owned(),
        Some(error) => format!("**wrong**: {}", cell(error)),
    };
    let (off, allowed) = (number(kernel.off), number(kernel.allowed));
    format!("| {device} | {} | {off} | {allowed} | {verdict} |", kernel.name)
}

/// Text that stays in its cell.
fn cell(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ").replace('|', "\\|")
}
