//! What a broker keeps in memory for each idle connection and each held grant.

use std::fs;
use std::io::{Read, Write};
use std::net::TcpStream;

use anyhow::{Context, Result, ensure};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use crate::keys::{Run, Space};
use crate::protocol::{Answer, Protocol, Slot, Ticketing};
use crate::servers::Server;

/// Lets this process and the servers that it starts open as many files as the system allows.
///
/// # Errors
/// The system refuses.
pub fn raise_file_limit() -> Result<()> {
    let limit = getrlimit(Resource::Nofile);
    setrlimit(
        Resource::Nofile,
        Rlimit {
            current: limit.maximum,
            ..limit
        },
    )
    .context("can't raise the limit of open files")
}

/// Bytes that `server` grows by for each of `count` idle connections.
///
/// # Errors
/// The broker refuses one, or its process can't be looked at.
pub fn per_connection(server: &Server, count: usize) -> Result<u64> {
    let mut idle = Vec::with_capacity(count);
    let open = || -> Result<TcpStream> {
        let mut stream = TcpStream::connect(server.addr)?;
        Ticketing::open(&mut stream)?;
        Ok(stream)
    };
    // The first few pay for what is there once.
    for _ in 0..count / 100 {
        idle.push(open()?);
    }
    let before = resident(server)?;
    let counted = count - idle.len();
    for _ in 0..counted {
        idle.push(open()?);
    }
    Ok(resident(server)?.saturating_sub(before) / counted as u64)
}

/// Bytes that `server` grows by for each of `count` grants held on keys of
/// [`KEY_LEN`](crate::keys::KEY_LEN) bytes.
///
/// # Errors
/// The broker refuses one, or its process can't be looked at.
pub fn per_grant(server: &Server, count: u64) -> Result<u64> {
    const BATCH: usize = 500;
    let mut stream = TcpStream::connect(server.addr)?;
    let mut protocol = Ticketing::open(&mut stream)?;
    let mut keys = Run::new(Space::Distinct)?.keys(0);
    let mut hold = |grants: u64| -> Result<()> {
        for _ in 0..grants / BATCH as u64 {
            let mut slots: Vec<Slot> = (0..BATCH)
                .map(|_| Slot {
                    key: keys.next_key(),
                    token: 0,
                })
                .collect();
            let mut bytes = Vec::new();
            for (index, slot) in slots.iter().enumerate() {
                protocol.acquire_within(0, index, slot, &mut bytes);
            }
            stream.write_all(&bytes)?;
            let (mut input, mut read) = (vec![0; 64 * 1024], 0);
            let mut held = 0;
            while held < BATCH {
                let more = stream.read(&mut input[read..])?;
                ensure!(more > 0, "the broker closed the connection");
                read += more;
                let mut used = 0;
                while let Some((len, _, answer)) =
                    protocol.answer(&input[used..read], &mut slots)?
                {
                    ensure!(answer == Answer::Granted, "a free key was refused");
                    (used, held) = (used + len, held + 1);
                }
                input.copy_within(used..read, 0);
                read -= used;
            }
        }
        Ok(())
    };
    let warm = count / 100;
    hold(warm)?;
    let before = resident(server)?;
    hold(count - warm)?;
    Ok(resident(server)?.saturating_sub(before) / (count - warm))
}

/// The resident size of a server's process, in bytes.
fn resident(server: &Server) -> Result<u64> {
    let status = fs::read_to_string(format!("/proc/{}/status", server.pid()))?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    let kibibytes = line.and_then(|line| line.trim().strip_suffix(" kB"));
    Ok(kibibytes
        .context("no resident size in /proc")?
        .trim()
        .parse::<u64>()?
        * 1024)
}
