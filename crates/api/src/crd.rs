//! The custom resource definitions.

use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::{
    CustomResourceDefinition, JSONSchemaProps, JSONSchemaPropsOrArray, JSONSchemaPropsOrBool,
};
use kube_core::CustomResourceExt;

use super::{Lease, Lessor};

/// The definition of [`Lease`].
pub fn lease() -> CustomResourceDefinition {
    tidied(Lease::crd())
}

/// The definition of [`Lessor`].
pub fn lessor() -> CustomResourceDefinition {
    tidied(Lessor::crd())
}

/// Both definitions.
pub fn all() -> [CustomResourceDefinition; 2] {
    [lease(), lessor()]
}

/// A definition as a YAML document that begins with a separator.
///
/// # Errors
///
/// The serializer's error. The definitions of this crate cause none.
pub fn to_yaml(crd: &CustomResourceDefinition) -> Result<String, serde_saphyr::SerializeError> {
    Ok(format!("---\n{}", serde_saphyr::to_string(crd)?))
}

fn tidied(mut crd: CustomResourceDefinition) -> CustomResourceDefinition {
    for version in &mut crd.spec.versions {
        if let Some(schema) = version.schema.as_mut().and_then(|schema| schema.open_api_v3_schema.as_mut()) {
            tidy(schema);
        }
    }
    crd
}

/// Makes every optional field non-nullable, and every paragraph of a description one line.
///
/// The API server drops `null` from a field that isn't nullable, so a field is present or absent, with no third case.
/// `kubectl explain` wraps lines, and keeps existing line breaks.
fn tidy(schema: &mut JSONSchemaProps) {
    schema.nullable = None;
    if let Some(description) = &mut schema.description {
        *description =
            description.split("\n\n").map(|lines| lines.replace('\n', " ")).collect::<Vec<_>>().join("\n\n");
    }
    for property in schema.properties.iter_mut().flat_map(|properties| properties.values_mut()) {
        tidy(property);
    }
    if let Some(JSONSchemaPropsOrArray::Schema(items)) = &mut schema.items {
        tidy(items);
    }
    if let Some(JSONSchemaPropsOrBool::Schema(members)) = &mut schema.additional_properties {
        tidy(members);
    }
}

#[cfg(test)]
mod tests {
    use std::{fs, path::Path};

    use super::*;

    /// Each schema of a definition, with the path to it.
    fn schemas(crd: &CustomResourceDefinition) -> Vec<(String, &JSONSchemaProps)> {
        fn walk<'a>(
            path: String,
            schema: &'a JSONSchemaProps,
            found: &mut Vec<(String, &'a JSONSchemaProps)>,
        ) {
            for (name, property) in schema.properties.iter().flatten() {
                walk(format!("{path}.{name}"), property, found);
            }
            if let Some(JSONSchemaPropsOrArray::Schema(items)) = &schema.items {
                walk(format!("{path}[]"), items, found);
            }
            found.push((path, schema));
        }
        let mut found = Vec::new();
        for schema in crd.spec.versions.iter().filter_map(|version| version.schema.as_ref()) {
            walk(String::new(), schema.open_api_v3_schema.as_ref().expect("a schema"), &mut found);
        }
        found
    }

    #[test]
    fn the_files_under_crds_are_generated_from_the_code() {
        let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../crds");
        for crd in all() {
            let file = directory.join(format!("{}.yaml", crd.metadata.name.as_deref().expect("a name")));
            let there = fs::read_to_string(&file).unwrap_or_default();
            assert!(
                there == to_yaml(&crd).expect("YAML"),
                "{} differs from the code: run `just crds`, or `cargo run -- crd {} > {}`",
                file.display(),
                crd.spec.names.plural,
                file.display()
            );
        }
        assert_eq!(
            fs::read_dir(directory).expect("the directory").count(),
            all().len(),
            "a file that isn't generated"
        );
    }

    #[test]
    fn every_field_has_a_description_and_is_not_nullable() {
        for crd in all() {
            for (path, schema) in schemas(&crd) {
                // The items of a list are described with the list.
                assert!(schema.description.is_some() || path.ends_with("[]"), "{path}");
                assert_eq!(schema.nullable, None, "{path}");
            }
        }
    }

    #[test]
    fn numbers_are_signed_and_of_64_bits() {
        for crd in all() {
            for (path, schema) in schemas(&crd) {
                if schema.type_.as_deref() == Some("integer") {
                    assert_eq!(schema.format.as_deref(), Some("int64"), "{path}");
                }
            }
        }
    }

    #[test]
    fn every_spec_field_has_a_maximum_length_or_a_range() {
        for (path, schema) in schemas(&lease()).into_iter().filter(|(path, _)| path.starts_with(".spec.")) {
            match schema.type_.as_deref() {
                Some("string") => assert!(schema.max_length.is_some() || schema.enum_.is_some(), "{path}"),
                Some("integer") => assert!(schema.minimum.is_some() && schema.maximum.is_some(), "{path}"),
                _ => {}
            }
        }
    }
}
