#![allow(clippy::print_stdout, missing_docs)]
use lessor_model::{server::Rules, world::*};
#[test]
fn debug() {
    let budget = Budget { faults: 9, edits: 9, ends: 50 };
    let mut world = World::new(2, Form::Whole, Rules::default(), budget).until(3).with(budget);
    world.happen(Action::Fault(Fault::Crash(0)), Form::Whole);
    world.happen(Action::Restart(0), Form::Whole);
    for step in 0..60 {
        world.proceed();
        println!("{step} {world:?}");
    }
}
