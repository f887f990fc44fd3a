//! Floors of a model on a device: what has to be read and computed, over what the device can.

use super::floor::Rates;
use calla_model::budget::{Mlx4Bit, PartBytes, SizeParts, StepSize, step_bytes, step_flops};
use calla_model::{Network, Shape};

/// What floors follow from.
pub(super) struct Floors {
    pub(super) shape: Shape,
    network: Network<SizeParts>,
    element_bytes: usize,
    rates: Rates,
}

impl Floors {
    pub(super) fn new(shape: Shape, element_bytes: usize, rates: Rates) -> anyhow::Result<Self> {
        let network = Network::build(&shape, &mut Mlx4Bit { mtp: false })?;
        Ok(Self { shape, network, element_bytes, rates })
    }

    /// Tokens per second of a prompt at most, all of it in one step.
    pub(super) fn prefill(&self, context: usize) -> Option<f64> {
        self.rate(StepSize { sequences: 1, rows: context, context })
    }

    /// Tokens per second of all sequences at most, over `steps` steps from `context` on.
    pub(super) fn decode(&self, sequences: usize, context: usize, steps: usize) -> Option<f64> {
        // What a step takes grows evenly: the one in the middle stands for all.
        self.rate(StepSize { sequences, rows: 1, context: context + steps.div_ceil(2) })
    }

    fn rate(&self, size: StepSize) -> Option<f64> {
        let bytes =
            step_bytes(&self.shape, &PartBytes::of(&self.network), size, self.element_bytes);
        let flops = step_flops(&self.shape, &self.network, size);
        let tokens = (size.sequences * size.rows) as f64;
        Some(tokens / self.rates.least_seconds(bytes, flops)?)
    }
}

#[cfg(test)]
mod tests {
    use super::super::floor::Rate;
    use super::*;

    #[test]
    fn the_floors_of_an_h200_are_those_that_are_known() {
        let rate = |per_second| Some(Rate { per_second, source: String::new() });
        let rates = Rates { read_bytes: rate(4.47e12), flops: rate(795e12) };
        let floors = Floors::new(Shape::full(40), 2, rates).unwrap();
        let decode = floors.decode(1, 4096, 0).unwrap();
        assert!((2_300.0..2_450.0).contains(&decode), "{decode}");
        let prefill = floors.prefill(4096).unwrap();
        assert!((140_000.0..160_000.0).contains(&prefill), "{prefill}");
        let eight = floors.decode(8, 4096, 0).unwrap();
        assert!(eight > decode && eight < 8.0 * decode, "{eight}");
    }
}
