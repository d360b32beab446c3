//! etcd's leases for Kubernetes: things that vanish when their holder stops renewing.
//!
//! [`api`] holds the custom resources and the grammar of the annotations that attach objects to leases.

pub mod api;
