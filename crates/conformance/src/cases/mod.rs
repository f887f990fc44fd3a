//! The cases: of each file of kernels one, which runs all of its entry points.

mod experts;
mod mixers;
mod moves;
mod products;
mod tokens;

use crate::{Agreement, Case, Failure};
use calla_gpu::Device;

/// What a case runs on: a device that keeps its failures to itself.
type On<'a> = &'a mut dyn Device;
type Verdict = Result<Agreement, Failure>;

const fn case(kernel: &'static str, run: fn(On<'_>) -> Verdict) -> Case {
    Case { kernel, run }
}

/// All cases, in the order of a step.
pub const CASES: &[Case] = &[
    case("embed", tokens::embed_case),
    case("rms_norm", products::rms_norm_case),
    case("qmm", products::qmm_case),
    case("qmv", products::qmv_case),
    case("delta_prep", mixers::delta_prep_case),
    case("gated_delta", mixers::gated_delta_case),
    case("delta_step", mixers::delta_step_case),
    case("gated_norm", products::gated_norm_case),
    case("qk_prep", mixers::qk_prep_case),
    case("attention_prefill", mixers::attention_prefill_case),
    case("attention_decode", mixers::attention_decode_case),
    case("top_k", experts::top_k_case),
    case("group_rows", experts::group_rows_case),
    case("expert_qmm", experts::expert_qmm_case),
    case("expert_qmv", experts::expert_qmv_case),
    case("combine", experts::combine_case),
    case("expert_qmv_grouped", experts::expert_qmv_grouped_case),
    case("mtp_rows", moves::mtp_rows_case),
    case("argmax", tokens::argmax_case),
    case("top_candidates", tokens::top_candidates_case),
    case("sample", tokens::sample_case),
    case("advance", tokens::advance_case),
    case("copy", moves::copy_case),
];
