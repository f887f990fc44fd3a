//! The memory plan: what weights and state take, what a machine offers, and a refusal with numbers.

use calla_model::Shape;
use calla_model::budget::{draft_kv_bytes, draft_state_bytes, kv_bytes, recurrent_state_bytes};
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
    /// KV cache of the running sequences, in bytes.
    pub kv: u64,
    /// Recurrent state of the running sequences and of drafts, in bytes.
    pub recurrent: u64,
    /// The context, in tokens.
    pub context: usize,
}

impl MemoryPlan {
    /// Plans for running sequences.
    #[must_use]
    pub fn new(shape: &Shape, weights: u64, needs: &StateNeeds) -> Self {
        let (kv, recurrent) = (needs.kv_bytes(shape), needs.slots_bytes(shape));
        Self { weights, kv, recurrent, context: needs.context }
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

    /// The longest context, in whole pages, that `machine` can hold beside the weights and the slots that
    /// `needs` asks for; 0 if none.
    #[must_use]
    pub fn longest_context(
        shape: &Shape,
        weights: u64,
        needs: &StateNeeds,
        machine: &Machine,
    ) -> usize {
        let fixed = weights + needs.slots_bytes(shape);
        let rest = machine.limit().saturating_sub(fixed);
        // A model without attention layers has no KV cache; its context costs nothing.
        let pages = rest.checked_div(needs.page_bytes(shape)).unwrap_or(u64::MAX);
        let tokens = pages.saturating_mul(PAGE_TOKENS as u64);
        if machine.limit() < fixed { 0 } else { tokens.min(shape.max_positions as u64) as usize }
    }
}

/// Most snapshots that a cache is made for: more would only lengthen the search for the one to evict.
const SNAPSHOTS_MAX: u64 = 256;

/// What the state of running sequences takes on a device, apart from snapshots.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StateNeeds {
    /// Tokens of all running sequences together.
    pub context: usize,
    /// Sequences that run at once.
    pub sequences: usize,
    /// Slots set apart for states between drafts.
    pub checkpoint_slots: usize,
    /// Slots that the device holds beside those, for what a step makes of the state that it reads.
    pub spare_slots: usize,
    /// Bytes of a stored key or value, and of an element of the convolution window.
    pub element_bytes: usize,
    /// Whether the draft layer keeps keys and values too, and each slot the row that it starts from.
    pub drafting: bool,
}

impl StateNeeds {
    /// One sequence without drafts.
    #[must_use]
    pub fn one_sequence(context: usize, element_bytes: usize) -> Self {
        let (checkpoint_slots, spare_slots, drafting) = (0, 0, false);
        Self { context, sequences: 1, checkpoint_slots, spare_slots, element_bytes, drafting }
    }

    /// Bytes of a slot.
    fn slot_bytes(&self, shape: &Shape) -> u64 {
        let kept = if self.drafting { draft_state_bytes(shape) } else { 0 };
        recurrent_state_bytes(shape, self.element_bytes) + kept
    }

    /// Bytes of a KV page.
    fn page_bytes(&self, shape: &Shape) -> u64 {
        let bytes = self.element_bytes;
        let draft = if self.drafting { draft_kv_bytes(shape, PAGE_TOKENS, bytes) } else { 0 };
        kv_bytes(shape, PAGE_TOKENS, bytes) + draft
    }

    fn slots_bytes(&self, shape: &Shape) -> u64 {
        let slots = self.sequences + self.checkpoint_slots + self.spare_slots;
        slots as u64 * self.slot_bytes(shape)
    }

    fn kv_bytes(&self, shape: &Shape) -> u64 {
        self.context.div_ceil(PAGE_TOKENS) as u64 * self.page_bytes(shape)
    }

    /// A cache for it, and beside it as many snapshots and cached KV pages as `budget` bytes hold, half of it
    /// each.
    #[must_use]
    pub fn cache_size(&self, shape: &Shape, budget: u64) -> CacheSize {
        let pages = self.context.div_ceil(PAGE_TOKENS);
        let half = budget / 2;
        let (slot, page) = (self.slot_bytes(shape), self.page_bytes(shape));
        // Without DeltaNet or attention layers, that half of the state costs nothing.
        let snapshots = half.checked_div(slot).unwrap_or(SNAPSHOTS_MAX).min(SNAPSHOTS_MAX);
        let cached = half.checked_div(page).unwrap_or(0).min(SNAPSHOTS_MAX * pages as u64);
        CacheSize {
            pages: pages + cached as usize,
            slots: self.sequences + self.checkpoint_slots + snapshots as usize,
        }
    }
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

    fn needs(context: usize) -> StateNeeds {
        StateNeeds::one_sequence(context, 2)
    }

    fn mac(gib: u64) -> Machine {
        let total = gib << 30;
        Machine { total, available: total, is_mac: true, gpu_limit_setting: None }
    }

    #[test]
    fn the_full_model_is_refused_on_a_24_gb_mac_naming_the_setting() {
        let plan = MemoryPlan::new(&Shape::full(40), FULL_WEIGHTS, &needs(4096));
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
        let longest = MemoryPlan::longest_context(&shape, FULL_WEIGHTS, &needs(0), &machine);
        assert!(longest > 0);
        assert!(MemoryPlan::new(&shape, FULL_WEIGHTS, &needs(longest)).check(&machine).is_ok());
        if longest < shape.max_positions {
            let more = MemoryPlan::new(&shape, FULL_WEIGHTS, &needs(longest + 1));
            assert!(more.check(&machine).is_err());
        }
        assert_eq!(MemoryPlan::longest_context(&shape, FULL_WEIGHTS, &needs(0), &mac(16)), 0);
    }

    #[test]
    fn what_is_left_holds_snapshots() {
        let shape = Shape::full(40);
        for drafting in [false, true] {
            let checkpoint_slots = if drafting { 2 } else { 0 };
            let needs =
                StateNeeds { drafting, checkpoint_slots, ..StateNeeds::one_sequence(4096, 4) };
            let none = needs.cache_size(&shape, 0);
            assert_eq!(none, CacheSize { pages: 64, slots: 1 + checkpoint_slots });
            let some = needs.cache_size(&shape, 2_000_000_000);
            let bytes = (some.slots - none.slots) as u64 * needs.slot_bytes(&shape)
                + (some.pages - none.pages) as u64 * needs.page_bytes(&shape);
            assert!((1_800_000_000..=2_000_000_000).contains(&bytes), "{some:?}: {bytes}");
        }
        let needs = StateNeeds::one_sequence(64, 4);
        assert_eq!(needs.cache_size(&Shape::demo(), 1 << 40).slots, 257);
    }

    #[test]
    fn the_draft_layer_counts_as_one_more_attention_layer() {
        let shape = Shape::full(40);
        let plain = StateNeeds::one_sequence(0, 2);
        let drafting = StateNeeds { drafting: true, ..plain };
        assert_eq!(plain.page_bytes(&shape) / 10 * 11, drafting.page_bytes(&shape));
        assert_eq!(drafting.slot_bytes(&shape) - plain.slot_bytes(&shape), 4 * 2048);
    }

    #[test]
    fn a_linux_machine_is_judged_by_available_memory() {
        let machine =
            Machine { total: 24 << 30, available: 4 << 30, is_mac: false, gpu_limit_setting: None };
        let plan =
            MemoryPlan::new(&Shape::full(40), FULL_WEIGHTS, &StateNeeds::one_sequence(4096, 4));
        let text = plan.check(&machine).unwrap_err().to_string();
        assert!(text.contains("available"), "{text}");
        let demo = MemoryPlan::new(&Shape::demo(), 15_000_000, &StateNeeds::one_sequence(4096, 4));
        assert_eq!(demo.check(&machine), Ok(()));
    }
}
