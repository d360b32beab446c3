//! The `lessor` command.
fn main() {}
