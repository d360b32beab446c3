//! A real Kubernetes API server and etcd for tests, without containers.
