//! Starts each server on a loopback port and in a folder of its own, and stops it by its process id.

use std::fs::{self, File};
use std::io::{BufRead, BufReader};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::unix::fs::chown;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use rustix::process::{Pid, Signal, kill_process};
use tempfile::TempDir;

/// How long a server may take to start or to stop.
const PATIENCE: Duration = Duration::from_secs(30);

/// A running server; dropping it stops it and removes its folder.
#[derive(Debug)]
pub struct Server {
    /// Where it listens.
    pub addr: SocketAddr,
    child: Child,
    folder: TempDir,
}

impl Server {
    /// The null responder: this very program.
    ///
    /// # Errors
    /// As for every server here: it is not installed, or does not start.
    pub fn null() -> Result<Self> {
        let mut command = Command::new(std::env::current_exe()?);
        command.args(["null", "--listen", "127.0.0.1:0"]);
        Self::that_says_where(command, TempDir::new()?)
    }

    /// The broker, `program` being `ticketing`; without `durable` it keeps nothing.
    ///
    /// # Errors
    /// See [`Server::null`].
    pub fn ticketing(program: &Path, durable: bool) -> Result<Self> {
        let folder = TempDir::new()?;
        let mut command = Command::new(program);
        command.args(["serve", "--listen", "127.0.0.1:0"]);
        if durable {
            command.arg("--data-dir").arg(folder.path().join("data"));
        } else {
            command.arg("--memory");
        }
        Self::that_says_where(command, folder)
    }

    /// Redis; `durable` syncs its log before each answer.
    ///
    /// # Errors
    /// See [`Server::null`].
    pub fn redis(durable: bool) -> Result<Self> {
        let (port, folder) = (free_port()?, TempDir::new()?);
        let mut command = Command::new(locate("redis-server")?);
        command.args([
            "--bind",
            "127.0.0.1",
            "--save",
            "",
            "--port",
            &port.to_string(),
            "--dir",
        ]);
        command.arg(folder.path());
        if durable {
            command.args(["--appendonly", "yes", "--appendfsync", "always"]);
        }
        Self::that_accepts(command, folder, port)
    }

    /// Memcached.
    ///
    /// # Errors
    /// See [`Server::null`].
    pub fn memcached() -> Result<Self> {
        let port = free_port()?;
        let mut command = Command::new(locate("memcached")?);
        command.args(["-l", "127.0.0.1", "-p", &port.to_string(), "-u", "nobody"]);
        Self::that_accepts(command, TempDir::new()?, port)
    }

    /// PostgreSQL with its usual settings and room for 600 sessions.
    ///
    /// # Errors
    /// See [`Server::null`].
    pub fn postgres() -> Result<Self> {
        let (port, folder) = (free_port()?, TempDir::new()?);
        let data = folder.path().join("data");
        // It refuses to run as root.
        let user = if rustix::process::geteuid().is_root() {
            Some(user_id("postgres")?)
        } else {
            None
        };
        let as_user = |program| -> Result<Command> {
            let mut command = Command::new(locate(program)?);
            if let Some((uid, gid)) = user {
                command.uid(uid).gid(gid);
            }
            command.current_dir(folder.path());
            Ok(command)
        };
        if let Some((uid, gid)) = user {
            chown(folder.path(), Some(uid), Some(gid))?;
        }
        let made = as_user("initdb")?
            .args([
                "--auth=trust",
                "--username=postgres",
                "--encoding=UTF8",
                "--pgdata",
            ])
            .arg(&data)
            .output()?;
        ensure!(
            made.status.success(),
            "initdb: {}",
            String::from_utf8_lossy(&made.stderr)
        );
        let mut command = as_user("postgres")?;
        command.args([
            "-h",
            "127.0.0.1",
            "-p",
            &port.to_string(),
            "-c",
            "max_connections=600",
        ]);
        command.args(["-k".as_ref(), folder.path(), "-D".as_ref(), &data]);
        let server = Self::that_accepts(command, folder, port)?;
        // It accepts connections a moment before it serves them.
        let ready = locate("pg_isready")?;
        let port = port.to_string();
        wait_until("PostgreSQL to serve", || {
            let mut ask = Command::new(&ready);
            ask.args(["-q", "-h", "127.0.0.1", "-p", &port]);
            Ok(ask.status()?.success().then_some(()))
        })?;
        Ok(server)
    }

    /// The server's process id.
    #[must_use]
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Starts a server whose first line on standard output is `listening on ADDR`.
    fn that_says_where(mut command: Command, folder: TempDir) -> Result<Self> {
        let mut child = spawn(&mut command, &folder, Stdio::piped())?;
        let mut line = String::new();
        BufReader::new(child.stdout.as_mut().context("a pipe was asked for")?)
            .read_line(&mut line)?;
        match line
            .trim_end()
            .strip_prefix("listening on ")
            .and_then(|addr| addr.parse().ok())
        {
            Some(addr) => Ok(Server {
                addr,
                child,
                folder,
            }),
            None => {
                let log = log(&folder);
                child.kill()?;
                child.wait()?;
                bail!("{command:?} said {line:?} instead of 'listening on ADDR'; {log}")
            }
        }
    }

    /// Starts a server that was told its port.
    fn that_accepts(mut command: Command, folder: TempDir, port: u16) -> Result<Self> {
        let addr = SocketAddr::from(([127, 0, 0, 1], port));
        let child = spawn(&mut command, &folder, Stdio::null())?;
        let mut server = Server {
            addr,
            child,
            folder,
        };
        wait_until("a server to listen", || {
            if let Some(status) = server.child.try_wait()? {
                bail!("{command:?} ended with {status}; {}", log(&server.folder));
            }
            Ok(TcpStream::connect(addr).ok())
        })?;
        Ok(server)
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let pid = i32::try_from(self.child.id()).ok().and_then(Pid::from_raw);
        // All of them take an interrupt as the wish for a quick and clean end.
        let asked = pid.is_some_and(|pid| kill_process(pid, Signal::INT).is_ok());
        let child = &mut self.child;
        if !asked || wait_until("a server to stop", || Ok(child.try_wait()?)).is_err() {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

fn spawn(command: &mut Command, folder: &TempDir, stdout: Stdio) -> Result<Child> {
    let errors = File::create(folder.path().join("log"))?;
    command.stdin(Stdio::null()).stdout(stdout).stderr(errors);
    command
        .spawn()
        .with_context(|| format!("can't start {command:?}"))
}

fn log(folder: &TempDir) -> String {
    let text = fs::read_to_string(folder.path().join("log")).unwrap_or_default();
    format!("its log: {}", text.trim_end())
}

fn wait_until<T>(what: &str, mut done: impl FnMut() -> Result<Option<T>>) -> Result<T> {
    let end = Instant::now() + PATIENCE;
    loop {
        if let Some(value) = done()? {
            return Ok(value);
        }
        ensure!(Instant::now() < end, "waited {PATIENCE:?} for {what}");
        std::thread::sleep(Duration::from_millis(10));
    }
}

fn free_port() -> Result<u16> {
    Ok(TcpListener::bind(("127.0.0.1", 0))?.local_addr()?.port())
}

/// Finds a program in `PATH`, or where Debian keeps PostgreSQL's.
fn locate(program: &str) -> Result<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let mut folders: Vec<PathBuf> = std::env::split_paths(&path).collect();
    if let Ok(versions) = fs::read_dir("/usr/lib/postgresql") {
        folders.extend(versions.flatten().map(|version| version.path().join("bin")));
    }
    folders
        .iter()
        .map(|folder| folder.join(program))
        .find(|file| file.is_file())
        .with_context(|| format!("'{program}' is missing: install it and try again"))
}

/// The ids of a user and of its group.
fn user_id(name: &str) -> Result<(u32, u32)> {
    let passwd = fs::read_to_string("/etc/passwd")?;
    let fields = passwd
        .lines()
        .map(|line| line.split(':').collect::<Vec<_>>());
    let user = fields
        .into_iter()
        .find(|fields| fields[0] == name && fields.len() > 3);
    let user = user.with_context(|| format!("there is no user '{name}'"))?;
    Ok((user[2].parse()?, user[3].parse()?))
}
