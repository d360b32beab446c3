//! The model in the form that the model checker needs, and the properties that it checks.

use std::{fmt, time::Duration};

use stateright::{Checker, HasDiscoveries, Model, Property};
use tokio::time::Instant;

use crate::{
    history::Promise,
    server::Rules,
    world::{Action, Budget, Form, World},
};

/// How long everything may take to end once nothing breaks any more, in ticks.
const REST: u32 = 40;

/// Where runs begin, and how far they may depart.
#[derive(Clone, Copy, Debug)]
pub struct Scenario {
    /// What it is called.
    pub name: &'static str,
    /// How many replicas there are.
    pub replicas: usize,
    /// How the ConfigMap is attached.
    pub form: Form,
    /// What holders ask for, in ticks.
    pub ttl: u32,
    /// What the server checks.
    pub rules: Rules,
    /// Where it begins.
    pub begins: Begin,
    /// How far it may depart; the end is counted from the beginning.
    pub budget: Budget,
}

/// Where runs begin.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Begin {
    /// All replicas start.
    Start,
    /// Both leases are granted, and due in so many ticks.
    Granted(u32),
    /// The same, and then all replicas died and start anew.
    Restarted(u32),
}

impl Scenario {
    fn world(&self) -> World {
        let world = World::new(self.replicas, self.form, self.ttl, self.rules, self.budget);
        let world = match self.begins {
            Begin::Start => world,
            Begin::Granted(left) => world.until(1 + self.ttl - left),
            Begin::Restarted(left) => world.until(1 + self.ttl - left).restarted(),
        };
        world.with(self.budget)
    }

    /// Explores up to so many states (0: all of them), and returns the result.
    pub fn explore(self, states: usize) -> Found {
        let start = Instant::now();
        let threads = std::thread::available_parallelism().map_or(1, usize::from);
        let mut builder = self.checker().threads(threads).finish_when(HasDiscoveries::AnyFailures);
        if states > 0 {
            builder = builder.target_state_count(states);
        }
        let checker = builder.spawn_dfs().join();
        let broken = checker.discoveries().into_iter().find(|(name, _)| !name.starts_with("sometimes"));
        let broken = broken.map(|(name, path)| {
            let last = path.last_state().clone();
            let actions = path.into_actions();
            let why = last.history.broken.clone().map(|(_, what)| what);
            let why = why.or_else(|| last.comes_to_rest(REST).err());
            Broken { property: name, why: why.unwrap_or_default(), actions }
        });
        let shown = checker.model().properties().into_iter().map(|property| property.name);
        let shown = shown.filter(|name| name.starts_with("sometimes"));
        let unshown = shown.filter(|name| checker.discovery(name).is_none()).collect();
        Found {
            unique: checker.unique_state_count(),
            generated: checker.state_count(),
            depth: checker.max_depth(),
            took: start.elapsed(),
            broken,
            unshown,
        }
    }
}

/// What came of an exploration.
#[derive(Debug)]
pub struct Found {
    /// States that differ.
    pub unique: usize,
    /// States that were reached, on whatever way.
    pub generated: usize,
    /// The longest run.
    pub depth: usize,
    /// How long it took.
    pub took: Duration,
    /// A run that breaks a promise.
    pub broken: Option<Broken>,
    /// What should happen somewhere and didn't.
    pub unshown: Vec<&'static str>,
}

/// A run that breaks a promise. Printed, it has a line for each departure.
#[derive(Debug)]
pub struct Broken {
    /// Which.
    pub property: &'static str,
    /// In which way.
    pub why: String,
    /// The run.
    pub actions: Vec<Action>,
}

impl fmt::Display for Broken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{}: {}", self.property, self.why)?;
        for same in self.actions.chunk_by(|one, other| one == other) {
            match same {
                [Action::Proceed, ..] => writeln!(f, "    {} steps", same.len())?,
                _ => same.iter().try_for_each(|action| writeln!(f, "    {action:?}"))?,
            }
        }
        Ok(())
    }
}

fn keeps(world: &World, promise: Promise) -> bool {
    world.history.broken.as_ref().is_none_or(|(broken, _)| *broken != promise)
}

impl Model for Scenario {
    type State = World;
    type Action = Action;

    fn init_states(&self) -> Vec<World> {
        vec![self.world()]
    }

    fn actions(&self, world: &World, actions: &mut Vec<Action>) {
        world.actions(self.form, actions);
    }

    fn next_state(&self, world: &World, action: Action) -> Option<World> {
        let mut next = world.clone();
        next.happen(action, self.form);
        Some(next)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        vec![
            Property::always("P1 never early", |_, world| keeps(world, Promise::NeverEarly)),
            Property::always("P2 one outcome", |_, world| keeps(world, Promise::OneOutcome)),
            Property::always("P3 nothing unattached", |_, world| keeps(world, Promise::NothingUnattached)),
            Property::always("P4 complete", |_, world| keeps(world, Promise::Complete)),
            Property::always("P5 harmless", |_, world| keeps(world, Promise::Harmless)),
            Property::always("P8 no outage ends a lease", |_, world| keeps(world, Promise::Outage)),
            Property::always("P4 progress", |_, world: &World| {
                !world.is_over() || world.history.broken.is_some() || world.comes_to_rest(REST).is_ok()
            }),
            Property::sometimes("sometimes a lease expires", |_, world: &World| world.history.seen.expired),
            Property::sometimes("sometimes a lease is revoked", |_, world: &World| {
                world.history.seen.revoked
            }),
            Property::sometimes("sometimes a primary is replaced", |_, world: &World| {
                world.history.seen.taken_over
            }),
            Property::sometimes("sometimes a write is too late", |_, world: &World| {
                world.history.seen.conflict
            }),
            Property::sometimes("sometimes a renewal is too late", |_, world: &World| {
                world.history.seen.refused
            }),
            Property::sometimes("sometimes a beat renews what follows it", |_, world: &World| {
                world.history.seen.beaten
            }),
        ]
    }
}
