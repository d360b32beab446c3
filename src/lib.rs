//! etcd's leases for Kubernetes.

pub mod lessor;
