//! Free ports.

use std::{io, net::TcpListener};

use crate::error::{Doing, Error};

/// Below the ports that systems give to outgoing connections (from 32768 on Linux, from 49152 elsewhere): a server
/// that is down for a while must find its port free when it comes back.
const PORTS: std::ops::Range<u16> = 20_000..32_000;

/// A port of 127.0.0.1 that is free now. It may be taken a moment later: be ready to choose again.
pub(crate) fn free_port() -> Result<u16, Error> {
    let mut result = Err(io::ErrorKind::AddrInUse.into());
    for _ in 0..100 {
        let port = fastrand::u16(PORTS);
        result = TcpListener::bind(("127.0.0.1", port)).map(|_| port);
        if result.is_ok() {
            break;
        }
    }
    result.doing(|| "looking for a free port on 127.0.0.1")
}
