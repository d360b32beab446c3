//! A kind whose objects can be attached, as the API server serves it.

use std::{fmt, sync::Arc};

use kube_core::ApiResource;
use lessor_api::KeyForm;

/// What a kind is called in messages, like `deployments.apps`.
pub type KindName = Arc<str>;

/// A kind whose objects can be attached.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Kind {
    /// Group, version, kind and plural.
    pub resource: ApiResource,
    /// What a key of such an object is.
    pub form: KeyForm,
    /// Whether keys that are JSON Pointers can be attached.
    pub pointers: bool,
}

impl Kind {
    /// ConfigMaps.
    pub fn config_map() -> Self {
        let resource = ApiResource {
            group: String::new(),
            version: "v1".to_owned(),
            api_version: "v1".to_owned(),
            kind: "ConfigMap".to_owned(),
            plural: "configmaps".to_owned(),
        };
        Self { resource, form: KeyForm::Data, pointers: false }
    }

    /// What it is called in messages, in any version.
    pub fn name(&self) -> KindName {
        self.to_string().into()
    }
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.resource.plural)?;
        if !self.resource.group.is_empty() {
            write!(f, ".{}", self.resource.group)?;
        }
        Ok(())
    }
}
