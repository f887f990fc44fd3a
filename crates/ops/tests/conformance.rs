//! The conformance suite on the reference itself: it must not depend on the batch either, and its chunked
//! recurrence must equal the recurrent one.

use calla_ops::Reference;
use calla_testkit::conformance::Suite;
use calla_testkit::tolerance;

fn suite() -> Suite {
    // Every bound but that of the recurrence is 0: this also proves the suite deterministic.
    Suite::new(|shape, cache| Reference::new(shape.clone(), cache).unwrap(), tolerance::REFERENCE)
        .longest(70)
}

calla_testkit::conformance_tests!(suite());

/// The chunked form: all that differs is the recurrence, and that only by rounding.
mod chunked {
    use super::*;
    use calla_ops::reference::DeltaForm;

    fn suite(chunk: usize) -> Suite {
        let form = DeltaForm::Chunked(chunk);
        Suite::new(
            move |shape, cache| Reference::with_delta_form(shape.clone(), cache, form).unwrap(),
            tolerance::REFERENCE,
        )
    }

    #[test]
    fn equals_the_recurrent_form_at_tile_edges() {
        for chunk in [1, 16, 64] {
            suite(chunk).agrees("gated_delta");
            suite(chunk).agrees("delta_step");
        }
    }

    #[test]
    fn gives_networks_the_same_logits() {
        suite(64).networks_agree();
    }
}
