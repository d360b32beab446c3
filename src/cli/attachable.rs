//! The attachable kinds, as arguments or as a file.

use std::path::PathBuf;

use anyhow::Context;
use clap::Args;
use lessor_core::attachable::{self, Attachable};

/// The attachable kinds.
#[derive(Args, Debug)]
#[group(skip)]
pub(crate) struct AttachableArgs {
    /// A kind that can be attached, besides ConfigMaps, as RESOURCE[.GROUP][/VERSION][:pointers], such as secrets or
    /// deployments.apps. With :pointers, single members of its objects can be attached too. Repeatable.
    #[arg(long, env = "LESSOR_ATTACHABLE", value_delimiter = ',', value_name = "KIND")]
    attachable: Vec<Attachable>,

    /// YAML file with such kinds: "attachable: [{resource: deployments, group: apps, pointers: true}]".
    #[arg(long, env = "LESSOR_ATTACHABLE_FILE", value_name = "FILE")]
    attachable_file: Option<PathBuf>,
}

impl AttachableArgs {
    /// All attachable kinds, including ConfigMaps.
    pub(crate) fn read(self) -> anyhow::Result<Vec<Attachable>> {
        let mut listed = self.attachable;
        if let Some(path) = self.attachable_file {
            let text = std::fs::read_to_string(&path)
                .with_context(|| format!("can't read the list of kinds {}", path.display()))?;
            let more = attachable::from_yaml(&text).with_context(|| format!("in {}", path.display()))?;
            listed.extend(more);
        }
        Ok(attachable::with_config_maps(listed)?)
    }
}
