//! Which replica is primary: the [election] claims the `Lessor`, proves an idle incumbent, and resigns.

pub mod election;
