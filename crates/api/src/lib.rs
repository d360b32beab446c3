//! The API of Lessor: custom resources and annotation grammar. Types and pure parsing, nothing else.

pub mod attachment;
#[cfg(feature = "schema")]
pub mod crd;
pub mod lease;
pub mod lessor;
pub mod pointer;
pub mod recorded;
#[cfg(feature = "schema")]
mod rules;
pub mod time;

pub use attachment::{Attachments, Key, KeyForm, LeaseName, Problem};
pub use lease::{
    AfterExpiry, Attached, Follows, Lease, LeaseSpec, LeaseStatus, OnLoss, PodSource, RenewFrom, SourceName,
};
pub use lessor::{Lessor, LessorStatus};
pub use pointer::Pointer;
pub use recorded::Recorded;

/// The API group of both custom resources, and the domain of every annotation and finalizer.
pub const GROUP: &str = "lessor.dev";

/// The one version of the group.
pub const VERSION: &str = "v1alpha1";
