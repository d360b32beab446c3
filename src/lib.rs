//! etcd's leases for Kubernetes: things that vanish when their holder stops renewing.

pub mod connectivity;
pub mod runtime;
pub mod watch;
