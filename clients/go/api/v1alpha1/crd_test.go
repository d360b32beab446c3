package v1alpha1

import (
	"maps"
	"os"
	"reflect"
	"slices"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/yaml"
)

// property is as much of a schema of a CRD as has an equivalent in Go.
type property struct {
	Type       string              `json:"type"`
	Format     string              `json:"format"`
	Properties map[string]property `json:"properties"`
	Required   []string            `json:"required"`
	Items      *property           `json:"items"`
	Enum       []string            `json:"enum"`
	Default    any                 `json:"default"`
}

func readSchema(t *testing.T, plural string) property {
	t.Helper()
	text, err := os.ReadFile("../../../../crds/" + plural + ".lessor.dev.yaml")
	if err != nil {
		t.Fatal(err)
	}
	var crd struct {
		Spec struct {
			Versions []struct {
				Name   string
				Schema struct {
					OpenAPIV3Schema property `json:"openAPIV3Schema"`
				}
			}
		}
	}
	if err := yaml.Unmarshal(text, &crd); err != nil {
		t.Fatal(err)
	}
	for _, version := range crd.Spec.Versions {
		if version.Name == SchemeGroupVersion.Version {
			return version.Schema.OpenAPIV3Schema
		}
	}
	t.Fatalf("no version %s", SchemeGroupVersion.Version)
	return property{}
}

func TestEachFieldOfALeaseIsThatOfTheCRD(t *testing.T) {
	compare(t, "lease", readSchema(t, "leases"), reflect.TypeFor[Lease]())
}

func TestEachFieldOfALessorIsThatOfTheCRD(t *testing.T) {
	compare(t, "lessor", readSchema(t, "lessors"), reflect.TypeFor[Lessor]())
}

// enums are the values of each type that has only some.
var enums = map[reflect.Type][]string{
	reflect.TypeFor[AfterExpiry](): {string(AfterExpiryDelete), string(AfterExpiryRetain)},
	reflect.TypeFor[OnLoss]():      {string(OnLossRunOut), string(OnLossEnd)},
}

func compare(t *testing.T, path string, schema property, goType reflect.Type) {
	t.Helper()
	if goType.Kind() == reflect.Pointer {
		goType = goType.Elem()
	}
	if values, isEnum := enums[goType]; isEnum || len(schema.Enum) > 0 {
		if !slices.Equal(schema.Enum, values) {
			t.Errorf("%s: the CRD allows %v, and %v has %v", path, schema.Enum, goType, values)
		}
	}
	switch {
	case schema.Type == "string" && schema.Format == "date-time":
		if goType != reflect.TypeFor[metav1.MicroTime]() && goType != reflect.TypeFor[metav1.Time]() {
			t.Errorf("%s is a time in the CRD, and %v in Go", path, goType)
		}
	case schema.Type == "array":
		if goType.Kind() != reflect.Slice {
			t.Fatalf("%s is an array in the CRD, and %v in Go", path, goType)
		}
		compare(t, path+"[]", *schema.Items, goType.Elem())
	case schema.Type == "object":
		if goType.Kind() != reflect.Struct {
			t.Fatalf("%s is an object in the CRD, and %v in Go", path, goType)
		}
		compareFields(t, path, schema, goType)
	default:
		kinds := map[string]reflect.Kind{"string": reflect.String, "boolean": reflect.Bool, "integer": reflect.Int64}
		if kinds[schema.Type] != goType.Kind() {
			t.Errorf("%s is %s in the CRD, and %v in Go", path, schema.Type, goType)
		}
	}
}

func compareFields(t *testing.T, path string, schema property, goType reflect.Type) {
	t.Helper()
	fields := map[string]reflect.StructField{}
	for _, field := range reflect.VisibleFields(goType) {
		name, options, _ := strings.Cut(field.Tag.Get("json"), ",")
		// What each object has isn't in the schema.
		if options == "inline" || name == "metadata" || len(field.Index) > 1 {
			continue
		}
		fields[name] = field
		found, exists := schema.Properties[name]
		if !exists {
			t.Errorf("%s.%s isn't in the CRD", path, name)
			continue
		}
		omits := strings.Contains(options, "omitempty") || strings.Contains(options, "omitzero")
		if required := slices.Contains(schema.Required, name); required == omits && found.Default == nil {
			t.Errorf("%s.%s: required by the CRD: %v, may be omitted in Go: %v", path, name, required, omits)
		}
		compare(t, path+"."+name, found, field.Type)
	}
	for _, name := range slices.Sorted(maps.Keys(schema.Properties)) {
		if _, exists := fields[name]; !exists {
			t.Errorf("%s.%s is missing in Go", path, name)
		}
	}
}
