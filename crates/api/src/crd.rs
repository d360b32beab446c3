//! The custom resource definitions, as installed.

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

/// A definition as a YAML document, with the separator in front of it.
///
/// # Errors
///
/// Passes on what the serializer says; no definition of ours makes it fail.
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

/// Makes every field that may be absent refuse `null`, and paragraphs of descriptions single lines.
///
/// The server drops a `null` where none is allowed: so a field is there or it isn't, and nobody who reads an object or
/// compares two of them has to know a third case. And `kubectl explain` wraps lines itself, but keeps the breaks that it
/// finds.
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
    fn the_files_under_crds_are_what_the_code_says() {
        let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../crds");
        for crd in all() {
            let file = directory.join(format!("{}.yaml", crd.metadata.name.as_deref().expect("a name")));
            let there = fs::read_to_string(&file).unwrap_or_default();
            assert!(
                there == to_yaml(&crd).expect("YAML"),
                "{} differs from src/api: run `just crds`, or `cargo run -- crd {} > {}`",
                file.display(),
                crd.spec.names.plural,
                file.display()
            );
        }
        assert_eq!(
            fs::read_dir(directory).expect("the directory").count(),
            all().len(),
            "a file that no code generates"
        );
    }

    #[test]
    fn every_field_has_a_description_and_none_takes_null() {
        for crd in all() {
            for (path, schema) in schemas(&crd) {
                assert!(schema.description.is_some(), "{path}");
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
    fn what_the_holder_writes_has_a_length_or_a_range() {
        for (path, schema) in schemas(&lease()).into_iter().filter(|(path, _)| path.starts_with(".spec.")) {
            match schema.type_.as_deref() {
                Some("string") => assert!(schema.max_length.is_some() || schema.enum_.is_some(), "{path}"),
                Some("integer") => assert!(schema.minimum.is_some() && schema.maximum.is_some(), "{path}"),
                _ => {}
            }
        }
    }
}
