//! The kinds that can be attached, as arguments or as a file.

use std::path::PathBuf;

use anyhow::Context;
use clap::Args as ClapArgs;
use lessor_core::attachable::{self, Attachable};

/// Which kinds can be attached.
#[derive(ClapArgs, Debug)]
#[group(skip)]
pub(crate) struct Args {
    /// A kind whose objects can be attached beside ConfigMaps, as RESOURCE[.GROUP][/VERSION], like secrets or
    /// deployments.apps; with :pointers at its end, members of them too. May be given several times.
    #[arg(long, env = "LESSOR_ATTACHABLE", value_delimiter = ',', value_name = "KIND")]
    attachable: Vec<Attachable>,

    /// A YAML file that lists such kinds: "attachable: [{resource: deployments, group: apps, pointers: true}]".
    #[arg(long, env = "LESSOR_ATTACHABLE_FILE", value_name = "FILE")]
    attachable_file: Option<PathBuf>,
}

impl Args {
    /// All of them, ConfigMaps included.
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
