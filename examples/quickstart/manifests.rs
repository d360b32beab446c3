//! The YAML of `examples/`, applied the way `kubectl apply --server-side` would.

use anyhow::Context;
use kube::{
    Api, Client,
    api::{ApiResource, DynamicObject, Patch, PatchParams},
    core::GroupVersionKind,
};

/// One file of `examples/`.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Manifest {
    /// Its name.
    pub(crate) name: &'static str,
    /// What it is about, for people.
    pub(crate) about: &'static str,
    yaml: &'static str,
}

/// An instance of a service and its lease.
pub(crate) const SERVICE: Manifest = Manifest {
    name: "service-registration.yaml",
    about: "a service registers itself, for as long as it lives",
    yaml: include_str!("../service-registration.yaml"),
};
/// Two sessions that share a ConfigMap.
pub(crate) const SESSIONS: Manifest = Manifest {
    name: "shared-configmap.yaml",
    about: "two sessions write keys into one ConfigMap",
    yaml: include_str!("../shared-configmap.yaml"),
};
/// A preview environment.
pub(crate) const PREVIEW: Manifest = Manifest {
    name: "preview-environment.yaml",
    about: "a preview environment for a pull request",
    yaml: include_str!("../preview-environment.yaml"),
};

/// The namespace that the files name.
pub(crate) const NAMESPACE: &str = "lessor-examples";

impl Manifest {
    /// Applies every object of the file, in `namespace` instead of the one that it names.
    pub(crate) async fn apply(&self, client: &Client, namespace: &str) -> anyhow::Result<()> {
        for mut object in self.objects()? {
            let types = object.types.clone().context("an object without a kind")?;
            let resource = ApiResource::from_gvk(&GroupVersionKind::try_from(types)?);
            let api: Api<DynamicObject> = if resource.kind == "Namespace" {
                object.metadata.name = Some(namespace.to_owned());
                Api::all_with(client.clone(), &resource)
            } else {
                object.metadata.namespace = Some(namespace.to_owned());
                Api::namespaced_with(client.clone(), namespace, &resource)
            };
            let name = object.metadata.name.clone().context("an object without a name")?;
            api.patch(&name, &PatchParams::apply("quickstart"), &Patch::Apply(&object))
                .await
                .with_context(|| format!("applying {} {name} of examples/{}", resource.kind, self.name))?;
        }
        Ok(())
    }

    fn objects(&self) -> anyhow::Result<Vec<DynamicObject>> {
        serde_saphyr::from_multiple(self.yaml).with_context(|| format!("reading examples/{}", self.name))
    }
}
