//! The memory plan: what weights and state take, what a machine offers, and a refusal with numbers.

use calla_model::Shape;
use calla_model::budget::{kv_bytes, recurrent_state_bytes};
use calla_model::shape::PAGE_TOKENS;
use calla_ops::CacheSize;

/// One machine's memory, in bytes. A plain value, so that plans for other machines can be tested.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Machine {
    /// Physical memory.
    pub total: u64,
    /// Memory that other programs leave, as the system estimates it.
    pub available: u64,
    /// Whether it is a Mac, whose GPU may use only part of the memory.
    pub is_mac: bool,
    /// Its `iogpu.wired_limit_mb` setting in bytes, where it is set.
    pub gpu_limit_setting: Option<u64>,
}

/// Kept free for the system and the activations of a step.
const RESERVE: u64 = 1 << 30;

impl Machine {
    /// Bytes a Mac's GPU may keep resident: the setting, or the default share of memory.
    ///
    /// The default lies at 19.07 GB on a 24 GB Mac and 107.52 GiB on a 128 GB one (figures that users of
    /// other engines report); between them we take the smaller share, 74 %.
    #[must_use]
    pub fn gpu_working_set(&self) -> Option<u64> {
        self.is_mac.then(|| self.gpu_limit_setting.unwrap_or(self.total / 100 * 74))
    }

    /// Bytes that model and state may take.
    #[must_use]
    pub fn limit(&self) -> u64 {
        let host = self.available.max(self.total / 2).saturating_sub(RESERVE);
        self.gpu_working_set().map_or(host, |gpu| gpu.min(self.total.saturating_sub(RESERVE)))
    }
}

/// What a model takes with a given context.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MemoryPlan {
    /// Weights, in bytes.
    pub weights: u64,
    /// KV cache of the context, in bytes.
    pub kv: u64,
    /// Recurrent state of one sequence, in bytes.
    pub recurrent: u64,
    /// The context, in tokens.
    pub context: usize,
}

impl MemoryPlan {
    /// Plans one sequence of `context` tokens; `element_bytes` is the size of a stored key or value and of
    /// an element of the convolution window.
    #[must_use]
    pub fn new(shape: &Shape, weights: u64, context: usize, element_bytes: usize) -> Self {
        Self {
            weights,
            kv: kv_bytes(shape, context, element_bytes),
            recurrent: recurrent_state_bytes(shape, element_bytes),
            context,
        }
    }

    /// All of it, in bytes.
    #[must_use]
    pub fn total(&self) -> u64 {
        self.weights + self.kv + self.recurrent
    }

    /// Whether `machine` can hold it.
    ///
    /// # Errors
    /// A refusal with the numbers and what to do.
    pub fn check(&self, machine: &Machine) -> Result<(), Refusal> {
        if self.total() <= machine.limit() {
            return Ok(());
        }
        Err(Refusal { plan: *self, machine: *machine })
    }

    /// The longest context, in whole pages, that `machine` can hold beside the weights; 0 if none.
    #[must_use]
    pub fn longest_context(
        shape: &Shape,
        weights: u64,
        element_bytes: usize,
        machine: &Machine,
    ) -> usize {
        let fixed = weights + recurrent_state_bytes(shape, element_bytes);
        let rest = machine.limit().saturating_sub(fixed);
        let page = kv_bytes(shape, PAGE_TOKENS, element_bytes);
        // A model without attention layers has no KV cache; its context costs nothing.
        let pages = rest.checked_div(page).unwrap_or(u64::MAX);
        let tokens = pages.saturating_mul(PAGE_TOKENS as u64);
        if machine.limit() < fixed { 0 } else { tokens.min(shape.max_positions as u64) as usize }
    }
}

/// Most snapshots that a cache is made for: more would only lengthen the search for the one to evict.
const SNAPSHOTS_MAX: u64 = 256;

/// State for one sequence of `context` tokens, and beside it as many snapshots and cached KV pages as
/// `budget` bytes hold, half of it each.
#[must_use]
pub fn cache_size(shape: &Shape, context: usize, element_bytes: usize, budget: u64) -> CacheSize {
    let CacheSize { pages, slots } = CacheSize::one_sequence(context);
    let half = budget / 2;
    let snapshot = recurrent_state_bytes(shape, element_bytes);
    let page = kv_bytes(shape, PAGE_TOKENS, element_bytes);
    // Without DeltaNet or attention layers, that half of the state costs nothing.
    let snapshots = half.checked_div(snapshot).unwrap_or(SNAPSHOTS_MAX).min(SNAPSHOTS_MAX);
    let cached = half.checked_div(page).unwrap_or(0).min(SNAPSHOTS_MAX * pages as u64);
    CacheSize { pages: pages + cached as usize, slots: slots + snapshots as usize }
}

/// A machine cannot hold a model.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Refusal {
    /// What was asked for.
    pub plan: MemoryPlan,
    /// What there is.
    pub machine: Machine,
}

impl std::error::Error for Refusal {}

impl std::fmt::Display for Refusal {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let gb = |bytes: u64| format!("{:.2} GB", bytes as f64 / 1e9);
        let (plan, machine) = (&self.plan, &self.machine);
        write!(
            f,
            "the model does not fit: weights {} + state {} for {} tokens of context = {}, \
             but this machine allows {}",
            gb(plan.weights),
            gb(plan.kv + plan.recurrent),
            plan.context,
            gb(plan.total()),
            gb(machine.limit())
        )?;
        if let Some(working_set) = machine.gpu_working_set() {
            let megabytes = (plan.total() + RESERVE).div_ceil(1 << 20);
            write!(
                f,
                " (its GPU working-set limit is {}, of {} of memory)",
                gb(working_set),
                gb(machine.total)
            )?;
            if megabytes << 20 < machine.total {
                write!(
                    f,
                    "; raise it with `sudo sysctl iogpu.wired_limit_mb={megabytes}`, \
                     or use a shorter context (--ctx)"
                )?;
            } else {
                write!(f, "; this Mac has too little memory for it, whatever the setting")?;
            }
        } else {
            write!(
                f,
                " ({} of memory, {} available); close other programs or use a shorter context (--ctx)",
                gb(machine.total),
                gb(machine.available)
            )?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FULL_WEIGHTS: u64 = 19_508_787_456;

    fn mac(gib: u64) -> Machine {
        let total = gib << 30;
        Machine { total, available: total, is_mac: true, gpu_limit_setting: None }
    }

    #[test]
    fn the_full_model_is_refused_on_a_24_gb_mac_naming_the_setting() {
        let plan = MemoryPlan::new(&Shape::full(40), FULL_WEIGHTS, 4096, 2);
        let text = plan.check(&mac(24)).unwrap_err().to_string();
        assert!(text.contains("working-set limit is 19.07 GB"), "{text}");
        assert!(text.contains("iogpu.wired_limit_mb="), "{text}");
        let raised = Machine { gpu_limit_setting: Some(22 << 30), ..mac(24) };
        assert_eq!(plan.check(&raised), Ok(()));
        assert_eq!(plan.check(&mac(32)), Ok(()));
        let text = plan.check(&mac(16)).unwrap_err().to_string();
        assert!(text.contains("too little memory"), "{text}");
    }

    #[test]
    fn the_longest_context_fits_and_the_next_page_does_not() {
        let shape = Shape::full(40);
        let machine = mac(32);
        let longest = MemoryPlan::longest_context(&shape, FULL_WEIGHTS, 2, &machine);
        assert!(longest > 0);
        assert!(MemoryPlan::new(&shape, FULL_WEIGHTS, longest, 2).check(&machine).is_ok());
        if longest < shape.max_positions {
            let more = MemoryPlan::new(&shape, FULL_WEIGHTS, longest + 1, 2);
            assert!(more.check(&machine).is_err());
        }
        assert_eq!(MemoryPlan::longest_context(&shape, FULL_WEIGHTS, 2, &mac(16)), 0);
    }

    #[test]
    fn what_is_left_holds_snapshots() {
        let shape = Shape::full(40);
        let none = cache_size(&shape, 4096, 4, 0);
        assert_eq!(none, CacheSize::one_sequence(4096));
        let some = cache_size(&shape, 4096, 4, 2_000_000_000);
        let bytes = (some.slots - 1) as u64 * recurrent_state_bytes(&shape, 4)
            + (some.pages - none.pages) as u64 * kv_bytes(&shape, PAGE_TOKENS, 4);
        assert!((1_800_000_000..=2_000_000_000).contains(&bytes), "{some:?}: {bytes}");
        assert_eq!(cache_size(&Shape::demo(), 64, 4, 1 << 40).slots, 257);
    }

    #[test]
    fn a_linux_machine_is_judged_by_available_memory() {
        let machine =
            Machine { total: 24 << 30, available: 4 << 30, is_mac: false, gpu_limit_setting: None };
        let plan = MemoryPlan::new(&Shape::full(40), FULL_WEIGHTS, 4096, 4);
        let text = plan.check(&machine).unwrap_err().to_string();
        assert!(text.contains("available"), "{text}");
        let demo = MemoryPlan::new(&Shape::demo(), 15_000_000, 4096, 4);
        assert_eq!(demo.check(&machine), Ok(()));
    }
}
