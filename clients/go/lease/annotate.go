package lease

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/lessor-dev/lessor/clients/go/api/v1alpha1"
)

// changes are new values of annotations; nil removes one.
type changes map[string]*string

// attaching returns the changes that attach keys of an object, or the whole object without keys, to a lease and to no other.
func attaching(annotations map[string]string, hasData bool, lease string, keys []string) (changes, error) {
	if problems := validation.IsDNS1123Subdomain(lease); len(problems) > 0 {
		return nil, fmt.Errorf("invalid lease name %q: %s", lease, problems[0])
	}
	if len(keys) == 0 {
		return effective(annotations, changes{v1alpha1.LeaseAnnotation: &lease}), nil
	}
	listed, err := listedKeys(annotations)
	if err != nil {
		return nil, err
	}
	changed := changes{}
	for _, key := range keys {
		if err := validKey(key, hasData); err != nil {
			return nil, err
		}
		delete(listed, key)
		if hasData && len(validation.IsQualifiedName(v1alpha1.KeyAnnotationPrefix+key)) == 0 {
			changed[v1alpha1.KeyAnnotationPrefix+key] = &lease
			continue
		}
		listed[key] = lease
	}
	if !hasData {
		if err := notNested(slices.Collect(maps.Keys(listed))); err != nil {
			return nil, err
		}
	}
	changed[v1alpha1.KeysAnnotation] = format(listed)
	return effective(annotations, changed), nil
}

// detaching returns the changes that detach keys of an object from a lease; without keys, everything of the object.
func detaching(annotations map[string]string, lease string, keys []string) (changes, error) {
	listed, err := listedKeys(annotations)
	if err != nil {
		return nil, err
	}
	named := func(key string) bool { return len(keys) == 0 || slices.Contains(keys, key) }
	changed := changes{}
	for name, value := range annotations {
		key, isKey := strings.CutPrefix(name, v1alpha1.KeyAnnotationPrefix)
		if value == lease && (isKey && named(key) || name == v1alpha1.LeaseAnnotation && len(keys) == 0) {
			changed[name] = nil
		}
	}
	maps.DeleteFunc(listed, func(key, value string) bool { return value == lease && named(key) })
	changed[v1alpha1.KeysAnnotation] = format(listed)
	return effective(annotations, changed), nil
}

// listedKeys parses the annotation that lists keys. An invalid value isn't overwritten.
func listedKeys(annotations map[string]string) (map[string]string, error) {
	listed := map[string]string{}
	text, ok := annotations[v1alpha1.KeysAnnotation]
	if !ok {
		return listed, nil
	}
	if err := json.Unmarshal([]byte(text), &listed); err != nil || listed == nil {
		return nil, fmt.Errorf("%s is invalid: expected a JSON object that names the lease of each key", v1alpha1.KeysAnnotation)
	}
	return listed, nil
}

// format is the value of the annotation that lists keys, or nil if there are none.
func format(listed map[string]string) *string {
	if len(listed) == 0 {
		return nil
	}
	// It can't fail: keys and values are strings. Keys are sorted.
	text, _ := json.Marshal(listed)
	value := string(text)
	return &value
}

// effective leaves out the changes that have no effect.
func effective(annotations map[string]string, changed changes) changes {
	maps.DeleteFunc(changed, func(name string, value *string) bool {
		before, exists := annotations[name]
		return value == nil && !exists || value != nil && exists && before == *value
	})
	return changed
}

func validKey(key string, hasData bool) error {
	if hasData {
		if problems := validation.IsConfigMapKey(key); len(problems) > 0 {
			return fmt.Errorf("invalid key %q: %s", key, problems[0])
		}
		return nil
	}
	if !strings.HasPrefix(key, "/") {
		return fmt.Errorf("invalid key %q: expected a JSON Pointer, such as /spec/template", key)
	}
	return nil
}

// notNested fails if one of the pointers lies inside another: its removal would be decided by two leases.
func notNested(pointers []string) error {
	for _, outer := range pointers {
		for _, inner := range pointers {
			if strings.HasPrefix(inner, outer+"/") {
				return errors.New(inner + " lies inside " + outer + ", which is attached too")
			}
		}
	}
	return nil
}
