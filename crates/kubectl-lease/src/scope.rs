//! Which leases a command is about.

use clap::Args;

#[derive(Args, Debug, Clone, Default)]
pub(crate) struct ScopeArgs {
    /// Leases in all namespaces
    #[arg(long, short = 'A')]
    pub(crate) all_namespaces: bool,

    /// Leases that match this label selector, such as team=web
    #[arg(long, short = 'l', value_name = "SELECTOR", default_value = "")]
    pub(crate) selector: String,
}
