//! The custom resource definitions, as installed.

use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::{
    CustomResourceDefinition, JSONSchemaProps, JSONSchemaPropsOrArray, JSONSchemaPropsOrBool,
};
use kube::CustomResourceExt;

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
/// The server drops a `null` where none is allowed, before it looks at rules: so `renewTime: null` is a removal like any
/// other. Where it is allowed, rules would have to tell a `null` from an absent field everywhere. And `kubectl explain`
/// wraps lines itself, but keeps the breaks that it finds.
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
