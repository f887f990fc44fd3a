//! Kernels on the tensor units of Metal 4: what they replace, what they need, and the self-test that turns them on.
//!
//! Their sources ([`METAL4_KERNELS`](crate::sources::METAL4_KERNELS)) have the names, entry points, buffers, parameters,
//! function constants and grids of those in [`KERNELS`](crate::sources::KERNELS), so that the same dispatches run in
//! either library. No compiler has seen them (`docs/metal4.md`): a driver leaves them off until [`self_test`] passes on
//! the device that is to run them.

mod cases;
mod run;

pub use cases::{CASES, Case, Operation};

use crate::device::{Device, DeviceError};
use crate::entries;

/// What a device has to offer before its driver tries the variants.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Requirement {
    /// The GPU is of `MTLGPUFamilyMetal4`.
    pub metal_family: u32,
    /// The GPU is of this `MTLGPUFamilyApple` or later: those before it run tensor operations without tensor units.
    pub apple_family: u32,
    /// First macOS whose tensors may hold bf16: major and minor.
    pub macos: (u32, u32),
    /// Language version to set when the sources are compiled, major and minor: the default is that of the SDK that the
    /// program was linked with.
    pub language: (u32, u32),
}

/// What all variants require.
pub const REQUIREMENT: Requirement =
    Requirement { metal_family: 4, apple_family: 10, macos: (26, 1), language: (4, 0) };

/// Terms of bf16 that stand for an f32, as `kernels/metal4/terms.h` says. Bounds hold for so many.
pub const TERMS: u32 = 2;

/// What the name of a runner's arithmetic ends in while the variants are on: sums are made in another order, so that
/// results differ in their last bits, and what was kept of one arithmetic is of no use to the other.
pub const ARITHMETIC: &str = "+metal4x2";

/// How far results may be from those of the kernels they replace, relative to the root mean square of the latter.
///
/// Where results are stored in bf16, a difference of one step of it is taken off first: two values that are nearly the same
/// may be rounded apart.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Tolerance {
    /// The largest difference.
    pub max: f32,
    /// The root mean square of all differences.
    pub rms: f32,
}

/// A kernel that has a variant.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Variant {
    /// Its entry point, in both libraries.
    pub entry: &'static str,
    /// Its file, in both lists of sources.
    pub file: &'static str,
    /// How far its results may be off.
    pub tolerance: Tolerance,
}

/// One product. Weights are off by 2^-17 of themselves at most, of random sign, which makes 2^-18.6 of the result's rms;
/// sums of up to 2048 terms by about 4e-6 at most. Room for a sum that is not rounded to nearest: four times as much.
const PRODUCT: Tolerance = Tolerance { max: 1e-4, rms: 2e-5 };
/// Two products of which a value of 5 rms multiplies one of the other.
const SWIGLU: Tolerance = Tolerance { max: 2e-4, rms: 4e-5 };
/// Weights of positions, off by 2^-17, and their exponents by 2^-24 of some 10.
const ATTENTION: Tolerance = Tolerance { max: 1e-4, rms: 2e-5 };

/// All kernels that have one.
pub const VARIANTS: [Variant; 9] = [
    variant(entries::QMM_R32, "qmm.metal", PRODUCT),
    variant(entries::QMM_R64, "qmm.metal", PRODUCT),
    variant(entries::QMM_SWIGLU_R32, "qmm.metal", SWIGLU),
    variant(entries::QMM_SWIGLU_R64, "qmm.metal", SWIGLU),
    variant(entries::EXPERT_QMM_UP_R32, "expert_qmm.metal", SWIGLU),
    variant(entries::EXPERT_QMM_UP_R64, "expert_qmm.metal", SWIGLU),
    variant(entries::EXPERT_QMM_DOWN_R32, "expert_qmm.metal", PRODUCT),
    variant(entries::EXPERT_QMM_DOWN_R64, "expert_qmm.metal", PRODUCT),
    variant(entries::ATTENTION_PREFILL, "attention_prefill.metal", ATTENTION),
];

const fn variant(entry: &'static str, file: &'static str, tolerance: Tolerance) -> Variant {
    Variant { entry, file, tolerance }
}

/// Why the variants stay off.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum SelfTestError {
    /// A device failed: its variants may not compile.
    #[error("self-test of Metal 4 kernels, case {case}, {library} library: {error}")]
    Device {
        /// Index in [`CASES`].
        case: usize,
        /// Which library ran: "plain" or "metal4".
        library: &'static str,
        /// What the device said.
        error: DeviceError,
    },
    /// Results are too far from those of the kernels that they would replace.
    #[error(
        "self-test of Metal 4 kernels, case {case}: {entry} is off by {} at most and {} rms, allowed {} and {}",
        .found.max, .found.rms, .allowed.max, .allowed.rms
    )]
    Differs {
        /// Index in [`CASES`].
        case: usize,
        /// The entry point.
        entry: &'static str,
        /// How far they are, not a number where a result is not.
        found: Tolerance,
        /// How far they may be.
        allowed: Tolerance,
    },
    /// A row's result depends on the tile, or on the rows that it is computed with.
    #[error(
        "self-test of Metal 4 kernels, case {case}: {entry} gives row {row} other bits when it computes rows {rows:?}"
    )]
    Depends {
        /// Index in [`CASES`].
        case: usize,
        /// The entry point that gave the other bits.
        entry: &'static str,
        /// The row.
        row: usize,
        /// The rows that it was computed with.
        rows: std::ops::Range<usize>,
    },
}

/// How far a case's results are off.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Agreement {
    /// Index in [`CASES`].
    pub case: usize,
    /// The entry point.
    pub entry: &'static str,
    /// How far its results are off.
    pub found: Tolerance,
}

/// Runs all of [`CASES`] with both libraries, `plain` on the kernels of [`KERNELS`](crate::sources::KERNELS) and `metal4`
/// with the variants in their place: results have to be within the bounds of [`VARIANTS`], and a row's result the same
/// bits whatever rows and tile it is computed with, which prefixes that are kept and found again rest on.
///
/// What it allocates, about 25 MB, is not given back: give it devices of its own.
///
/// # Errors
/// If the variants are to stay off: says why.
pub fn self_test(
    plain: &mut dyn Device,
    metal4: &mut dyn Device,
) -> Result<Vec<Agreement>, SelfTestError> {
    let mut all = vec![];
    for (case, what) in CASES.iter().enumerate() {
        all.extend(test_case(case, what, plain, metal4)?);
    }
    Ok(all)
}

/// Rows of a tile, or of a chunk: a case runs with either.
const TILES: [u32; 2] = [32, 64];

fn test_case(
    case: usize,
    what: &Case,
    plain: &mut dyn Device,
    metal4: &mut dyn Device,
) -> Result<Vec<Agreement>, SelfTestError> {
    let failed = |library| move |error| SelfTestError::Device { case, library, error };
    let rows = 0..what.rows;
    // Both of its tiles give the same bits.
    let due = what.run(plain, rows.clone(), TILES[0]).map_err(failed("plain"))?;
    let mut agreements = vec![];
    let mut whole: Option<Vec<f32>> = None;
    for tile in TILES {
        let variant = what.variant(tile);
        let found = what.run(metal4, rows.clone(), tile).map_err(failed("metal4"))?;
        let agreement = difference(&found, &due, what.is_rounded());
        // Written so that what is not a number does not pass.
        if !(agreement.max <= variant.tolerance.max && agreement.rms <= variant.tolerance.rms) {
            return Err(SelfTestError::Differs {
                case,
                entry: variant.entry,
                found: agreement,
                allowed: variant.tolerance,
            });
        }
        agreements.push(Agreement { case, entry: variant.entry, found: agreement });
        let whole = whole.get_or_insert_with(|| found.clone());
        let mut parts = what.parts();
        parts.push(rows.clone());
        for part in parts {
            let found = what.run(metal4, part.clone(), tile).map_err(failed("metal4"))?;
            let width = found.len() / part.len();
            let due = &whole[part.start * width..part.end * width];
            let other = found.iter().zip(due).position(|(a, b)| a.to_bits() != b.to_bits());
            if let Some(at) = other {
                let (entry, row) = (variant.entry, part.start + at / width);
                return Err(SelfTestError::Depends { case, entry, row, rows: part });
            }
        }
    }
    Ok(agreements)
}

/// How far `found` is from `due`, relative to the root mean square of `due`. `rounded`: both are stored in bf16.
fn difference(found: &[f32], due: &[f32], rounded: bool) -> Tolerance {
    let step = if rounded { 1.0 / 128.0 } else { 0.0 };
    let (mut max, mut squares, mut size) = (0.0_f64, 0.0_f64, 0.0_f64);
    for (&found, &due) in found.iter().zip(due) {
        let (found, due) = (f64::from(found), f64::from(due));
        let off = ((found - due).abs() - step * due.abs()).max(0.0);
        // `max` would lose what is not a number.
        if !off.is_finite() || !found.is_finite() {
            return Tolerance { max: f32::NAN, rms: f32::NAN };
        }
        max = max.max(off);
        squares += off * off;
        size += due * due;
    }
    let count = due.len() as f64;
    let size = (size / count).sqrt();
    Tolerance { max: (max / size) as f32, rms: ((squares / count).sqrt() / size) as f32 }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sources::{HEADERS, KERNELS, METAL4_HEADERS, METAL4_KERNELS, Source};
    use calla_msl::{ParamKind, Target, Translation, translate};
    use std::collections::BTreeSet;

    /// Reads entry points and constants. What `tensors.h` declares is of no matter to them, and only Apple's compiler
    /// understands it.
    fn read(source: &Source, headers: &[&[Source]]) -> Translation {
        let headers: Vec<(&str, &str)> = headers
            .concat()
            .iter()
            .map(|header| {
                (
                    header.name,
                    if header.name == "tensors.h" { "#pragma once\n" } else { header.text },
                )
            })
            .collect();
        translate(Target::Host, source.name, source.text, &headers)
            .unwrap_or_else(|error| panic!("{error}"))
    }

    /// Each file of variants, and the file that it replaces.
    fn pairs() -> Vec<(Translation, Translation)> {
        METAL4_KERNELS
            .iter()
            .map(|source| {
                let plain = KERNELS.iter().find(|plain| plain.name == source.name);
                let plain = plain.unwrap_or_else(|| panic!("{} replaces nothing", source.name));
                (read(source, &[HEADERS, METAL4_HEADERS]), read(plain, &[HEADERS]))
            })
            .collect()
    }

    #[test]
    fn variants_take_what_they_replace_takes() {
        for (metal4, plain) in pairs() {
            let names = |t: &Translation| -> Vec<String> {
                t.entries.iter().map(|entry| entry.name.clone()).collect()
            };
            assert_eq!(names(&metal4), names(&plain));
            for (metal4, plain) in metal4.entries.iter().zip(&plain.entries) {
                let buffers = |entry: &calla_msl::Entry| -> Vec<(String, String, ParamKind)> {
                    let params = entry.params.iter();
                    let buffers = params.filter(|p| matches!(p.kind, ParamKind::Buffer { .. }));
                    buffers.map(|p| (p.name.clone(), p.kind_text.clone(), p.kind)).collect()
                };
                assert!(!buffers(plain).is_empty());
                assert_eq!(buffers(metal4), buffers(plain), "{}", plain.name);
                assert_eq!(metal4.arguments, plain.arguments, "{}", plain.name);
                assert_eq!(metal4.max_threads, plain.max_threads, "{}", plain.name);
            }
        }
    }

    #[test]
    fn a_dispatch_sets_all_constants_of_a_variant() {
        for (metal4, plain) in pairs() {
            for constant in &metal4.constants {
                assert!(plain.constants.contains(constant), "{}", constant.name);
            }
        }
    }

    #[test]
    fn the_table_and_the_sources_have_the_same_entry_points() {
        let listed: BTreeSet<(String, String)> =
            VARIANTS.iter().map(|v| (v.file.to_owned(), v.entry.to_owned())).collect();
        assert_eq!(listed.len(), VARIANTS.len());
        let mut found = BTreeSet::new();
        for source in METAL4_KERNELS {
            for entry in read(source, &[HEADERS, METAL4_HEADERS]).entries {
                found.insert((source.name.to_owned(), entry.name));
            }
        }
        assert_eq!(found, listed);
    }

    #[test]
    fn every_variant_is_tested() {
        let tested: BTreeSet<&str> =
            CASES.iter().flat_map(|case| TILES.map(|tile| case.variant(tile).entry)).collect();
        assert_eq!(tested, VARIANTS.iter().map(|variant| variant.entry).collect());
        for case in CASES {
            let parts = case.parts();
            assert!(!parts.is_empty() && parts.iter().all(|part| part.end <= case.rows));
        }
    }

    #[test]
    fn bounds_are_for_the_terms_of_the_sources() {
        let terms = METAL4_HEADERS.iter().find(|header| header.name == "terms.h").unwrap();
        assert!(terms.text.contains(&format!("#define TERMS {TERMS}\n")));
        assert!(ARITHMETIC.ends_with(&format!("x{TERMS}")));
    }

    #[test]
    fn headers_have_names_of_their_own() {
        for header in METAL4_HEADERS {
            assert!(HEADERS.iter().all(|plain| plain.name != header.name), "{}", header.name);
        }
    }

    #[test]
    fn differences_see_what_is_off_and_what_is_no_number() {
        let due = [3.0, -4.0, 0.0, 5.0];
        let same = difference(&due, &due, false);
        assert_eq!((same.max, same.rms), (0.0, 0.0));
        // The root mean square of `due` is 50^(1/2) / 2.
        let off = difference(&[3.0, -4.0, 0.5, 5.0], &due, false);
        let size = 12.5_f32.sqrt();
        assert!((off.max - 0.5 / size).abs() < 1e-6 && (off.rms - 0.25 / size).abs() < 1e-6);
        // A step of bf16 at 5 is 1/32; twice that is too much.
        assert_eq!(difference(&[3.0, -4.0, 0.0, 5.03125], &due, true).max, 0.0);
        assert!(difference(&[3.0, -4.0, 0.0, 5.0625], &due, true).max > 5e-3);
        for bad in [f32::NAN, f32::INFINITY] {
            assert!(difference(&[3.0, bad, 0.0, 5.0], &due, false).max.is_nan());
        }
    }
}
