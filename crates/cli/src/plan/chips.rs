//! What chips can do: memory bandwidth, and the rate of bf16 matrix products where it is known.

/// A chip.
#[derive(Debug)]
pub(crate) struct Chip {
    /// As `--chip` takes it.
    pub(crate) name: &'static str,
    /// In full.
    pub(crate) title: &'static str,
    /// Bytes per second from and to memory.
    pub(crate) bandwidth: u64,
    /// Floating-point operations per second of bf16 matrix products, summed in f32, without sparsity. `None` where no
    /// number was published or measured.
    pub(crate) flops: Option<u64>,
    /// Where the numbers are from.
    pub(crate) source: &'static str,
}

/// Apple publishes bandwidths, and no rate for matrix products.
const fn apple(name: &'static str, title: &'static str, gigabytes: u64) -> Chip {
    const SOURCE: &str = "the peak that Apple publishes";
    Chip { name, title, bandwidth: gigabytes * 1_000_000_000, flops: None, source: SOURCE }
}

/// A peak that NVIDIA publishes, in GB/s and GFLOP/s.
const fn nvidia(
    name: &'static str,
    title: &'static str,
    gigabytes: u64,
    gigaflops: u64,
    source: &'static str,
) -> Chip {
    let (bandwidth, flops) = (gigabytes * 1_000_000_000, Some(gigaflops * 1_000_000_000));
    Chip { name, title, bandwidth, flops, source }
}

/// All chips. `docs/plan.md` has the same table.
pub(crate) const CHIPS: &[Chip] = &[
    apple("m1", "Apple M1", 68),
    apple("m1-pro", "Apple M1 Pro", 200),
    apple("m1-max", "Apple M1 Max", 400),
    apple("m1-ultra", "Apple M1 Ultra", 800),
    apple("m2", "Apple M2", 100),
    apple("m2-pro", "Apple M2 Pro", 200),
    apple("m2-max", "Apple M2 Max", 400),
    apple("m2-ultra", "Apple M2 Ultra", 800),
    apple("m3", "Apple M3", 100),
    apple("m3-pro", "Apple M3 Pro", 150),
    apple("m3-max-30", "Apple M3 Max with a 30-core GPU", 300),
    apple("m3-max", "Apple M3 Max with a 40-core GPU", 400),
    apple("m3-ultra", "Apple M3 Ultra", 819),
    apple("m4", "Apple M4", 120),
    apple("m4-pro", "Apple M4 Pro", 273),
    apple("m4-max-32", "Apple M4 Max with a 32-core GPU", 410),
    apple("m4-max", "Apple M4 Max with a 40-core GPU", 546),
    apple("m5", "Apple M5", 153),
    apple("m5-pro", "Apple M5 Pro", 307),
    apple("m5-max-32", "Apple M5 Max with a 32-core GPU", 460),
    apple("m5-max", "Apple M5 Max with a 40-core GPU", 614),
    nvidia(
        "rtx-4090",
        "NVIDIA GeForce RTX 4090",
        1_008,
        165_200,
        "NVIDIA's Ada GPU architecture whitepaper: peak, bf16 summed in f32, dense",
    ),
    nvidia(
        "rtx-5090",
        "NVIDIA GeForce RTX 5090",
        1_792,
        209_500,
        "NVIDIA's RTX Blackwell GPU architecture whitepaper: peak, bf16 summed in f32, dense",
    ),
    nvidia(
        "h100",
        "NVIDIA H100 SXM",
        3_350,
        989_000,
        "NVIDIA's H100 data sheet: peak, bf16, dense",
    ),
    nvidia(
        "h200",
        "NVIDIA H200",
        4_470,
        795_000,
        "measured on one card: a read of memory, a large bf16 matrix product",
    ),
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_document_has_the_same_table() {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/plan.md");
        let document = std::fs::read_to_string(path).unwrap();
        for chip in CHIPS {
            let flops =
                chip.flops.map_or("-".to_owned(), |flops| (flops as f64 / 1e12).to_string());
            let row = format!("| `{}` | {} | {flops} |", chip.name, chip.bandwidth / 1_000_000_000);
            assert!(document.contains(&row), "no row {row}");
        }
        let rows = document.lines().filter(|line| line.starts_with("| `")).count();
        assert_eq!(rows, CHIPS.len());
    }
}
