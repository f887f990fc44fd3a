//! The kernels for Metal 4 on the host driver, with a model of Apple's tensor operations: the self-test passes, and
//! fails where it should.
//!
//! This shows that their indices, masks and barriers are right if the operations do what the model does, and nothing of
//! what Apple's compiler thinks of them.

mod common;

use calla_gpu::metal4::{Agreement, CASES, SelfTestError, self_test};
use calla_gpu::sources::{METAL4_HEADERS, METAL4_KERNELS};
use calla_gpu_host::{HostDevice, Options};

const MODEL: &str = include_str!("metal4/tensors.h");

/// A device with the variants. `change`: a replacement in the text of a file.
fn metal4(change: Option<(&str, &str, &str)>) -> HostDevice {
    let files = METAL4_KERNELS.iter().chain(METAL4_HEADERS).map(|source| {
        let text = if source.name == "tensors.h" { MODEL } else { source.text };
        let Some((file, from, to)) = change.filter(|(file, ..)| *file == source.name) else {
            return (source.name, text.to_owned());
        };
        assert_eq!(text.matches(from).count(), 1, "{file}: {from}");
        (source.name, text.replace(from, to))
    });
    let files: Vec<(&str, String)> = files.collect();
    let files: Vec<(&str, &str)> =
        files.iter().map(|(name, text)| (*name, text.as_str())).collect();
    HostDevice::with_sources(&Options::from_env(), &files).expect("a compiler, as before")
}

fn print(agreements: &[Agreement]) {
    for Agreement { case, entry, found } in agreements {
        println!("case {case}, {entry}: off by {:.1e}, rms {:.1e}", found.max, found.rms);
    }
}

#[test]
fn the_self_test_passes_on_a_model() {
    let Some(mut plain) = common::device() else { return };
    let mut variants = metal4(None);
    let agreements = self_test(&mut plain, &mut variants).unwrap_or_else(|e| panic!("{e}"));
    print(&agreements);
    assert_eq!(agreements.len(), 2 * CASES.len());
    // Not the same kernels twice.
    assert!(agreements.iter().any(|agreement| agreement.found.max > 0.0));
    for order in &common::ORDERS[1..] {
        variants.set_order(*order);
        let again = self_test(&mut plain, &mut variants).unwrap_or_else(|e| panic!("{e}"));
        assert_eq!(again, agreements, "order {order}");
    }
}

#[test]
fn the_kernels_agree_with_themselves() {
    let Some(mut plain) = common::device() else { return };
    let mut other = common::device().expect("as before");
    let agreements = self_test(&mut plain, &mut other).unwrap_or_else(|e| panic!("{e}"));
    assert!(agreements.iter().all(|agreement| agreement.found.max == 0.0));
}

/// One fault each: the self-test has to see it, and to say in which kernel.
#[test]
fn the_self_test_sees_faults() {
    let Some(mut plain) = common::device() else { return };
    let faults = [
        // Weights rounded to one term.
        ("terms.h", "#define TERMS 2", "#define TERMS 1", "qmm"),
        // An output of the neighbouring column.
        ("sums.h", "+ uint(at[0])]", "+ (uint(at[0]) ^ 1u)]", "qmm"),
        // Sums that are what registers held.
        ("product.h", "    clear(other_sums);\n", "", "qmm"),
        // The second matrix of a shared tile taken for the first.
        ("product.h", "up = sums[place + 8]", "up = sums[place]", "qmm_swiglu"),
        // A row that depends on how many come with it.
        ("product.h", "if (first_row < rows)", "if (first_row + 1 < rows)", "qmm"),
        // A step's operands written while the step before is multiplied; a page's scores likewise.
        (
            "product.h",
            "threadgroup_barrier(mem_flags::mem_threadgroup);    // the step before",
            "//",
            "qmm",
        ),
        (
            "attention_prefill.metal",
            "threadgroup_barrier(mem_flags::mem_threadgroup);  // the page before",
            "//",
            "attention_prefill",
        ),
        // Another row's expert output.
        ("expert_qmm.metal", "pairs[first + row])", "pairs[first])", "expert_qmm_down"),
        // Keys behind a row that it sees.
        ("attention_prefill.metal", ">= seen)", "> seen)", "attention_prefill"),
        // Values behind the last row.
        ("attention_prefill.metal", "int(last_key) + 1;", "PAGE_TOKENS;", "attention_prefill"),
        // Sums of pages before that keep their scale.
        (
            "attention_prefill.metal",
            "scale_rows(sums,",
            "if (page == 0) scale_rows(sums,",
            "attention_prefill",
        ),
    ];
    for (file, from, to, entry) in faults {
        let mut faulty = metal4(Some((file, from, to)));
        faulty.set_order(3);
        let error = self_test(&mut plain, &mut faulty).expect_err(&format!("{file}: {to}"));
        println!("{error}");
        match error {
            SelfTestError::Differs { entry: found, .. }
            | SelfTestError::Depends { entry: found, .. } => {
                assert!(found.starts_with(entry), "{file}: {to}: {found}");
            }
            SelfTestError::Device { .. } => panic!("{file}: {to}: {error}"),
        }
    }
}

/// Sources that do not compile leave the variants off.
#[test]
fn a_failure_of_the_device_is_said() {
    let Some(mut plain) = common::device() else { return };
    let mut broken = metal4(Some(("sums.h", "sums[i] = 0.0f;", "sums[i] = nothing;")));
    let error = self_test(&mut plain, &mut broken).expect_err("it does not compile");
    assert!(matches!(error, SelfTestError::Device { library: "metal4", .. }), "{error}");
}
