//! etcd's leases for Kubernetes.
