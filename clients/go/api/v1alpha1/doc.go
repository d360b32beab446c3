// Package v1alpha1 contains the objects of the API group lessor.dev: Lease and Lessor.
//
// A Lease of lessor.dev isn't a Lease of coordination.k8s.io, which is a heartbeat without an effect.
//
// +k8s:deepcopy-gen=package
// +groupName=lessor.dev
// +groupGoName=Lessor
package v1alpha1
