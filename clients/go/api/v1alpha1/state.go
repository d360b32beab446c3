package v1alpha1

import "k8s.io/apimachinery/pkg/api/meta"

// Granted reports whether the lease was ever granted.
func (l *Lease) Granted() bool {
	return l.Status.SpecGeneration != nil
}

// Ended reports whether the lease has ended. An end is final.
func (l *Lease) Ended() bool {
	return l.Status.EndTime != nil
}

// Active reports whether the lease is granted and hasn't ended. It stays true for a lease that is being revoked, until the
// primary has committed the end.
func (l *Lease) Active() bool {
	return !l.Ended() && meta.IsStatusConditionTrue(l.Status.Conditions, ConditionActive)
}

// Expiring reports whether the lease is active and at most spec.warnBeforeSeconds remain.
func (l *Lease) Expiring() bool {
	return l.Active() && meta.IsStatusConditionTrue(l.Status.Conditions, ConditionExpiring)
}

// State returns the reason of the condition Active: the state of the lease in one word. It is empty before the grant.
func (l *Lease) State() string {
	if active := meta.FindStatusCondition(l.Status.Conditions, ConditionActive); active != nil {
		return active.Reason
	}
	return ""
}
