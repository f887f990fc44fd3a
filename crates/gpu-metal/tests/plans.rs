//! Whole steps through the driver on the model of Metal: nothing that Metal forbids, for the demo and at full size.

mod common;

use calla_model::Shape;
use common::contract::Contract;
use common::network::{demo, drive, runner};

fn require(shape: &Shape) {
    let contract = Contract::new();
    let mut runner = runner(shape, &contract);
    drive(shape, &mut runner).unwrap();
    let mut world = contract.world();
    assert_eq!(world.violations(), Vec::<String>::new());
    println!("{} dispatches in {} buffers", world.dispatches, world.command_buffers());
    println!("{:?}", world.entries);
    assert!(world.dispatches > 500, "{}", world.dispatches);
    for entry in ["attention_prefill", "gated_delta", "group_rows", "qmv_1", "qmv_4", "copy"] {
        assert!(world.entries.iter().any(|name| name.starts_with(entry)), "{entry}");
    }
}

#[test]
fn steps_of_the_demo_keep_to_the_rules() {
    require(&demo());
}

#[test]
fn steps_at_full_size_keep_to_the_rules() {
    require(&Shape::full(40));
}
