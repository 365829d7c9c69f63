//! `ticketing init`: a folder from which a broker can be started, and its clients connected.

mod certificates;
mod files;

use std::fmt::Write;
use std::net::SocketAddr;

use camino::{Utf8Path, Utf8PathBuf};
use clap::Args;

use crate::failure::Failure;
use certificates::{Certificates, VALID_DAYS};
use files::{File, write_all};

const CONFIG: &str = "broker.toml";
const CLIENT_TOKEN: &str = "client-token";
const CA: &str = "ca.pem";
const CERT: &str = "cert.pem";
const KEY: &str = "key.pem";

#[derive(Debug, Args)]
pub(crate) struct InitArgs {
    /// Make a certificate for the broker too, and the private CA that vouches for it
    #[arg(long)]
    tls: bool,
    /// Host name or IP address by which clients reach the broker, besides localhost, 127.0.0.1
    /// and ::1; given several times, several
    #[arg(long = "name", value_name = "HOST", requires = "tls", value_parser = certificates::name)]
    names: Vec<String>,
    /// Address and port that the broker is to listen on
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1:5225", value_parser = listen)]
    listen: SocketAddr,
    /// Folder for the files; made if it is not there
    #[arg(value_name = "DIR")]
    dir: Utf8PathBuf,
}

/// Port 0 would be another port at each start, and the instructions wrong.
fn listen(text: &str) -> Result<SocketAddr, String> {
    match crate::args::address(text)? {
        addr if addr.port() == 0 => Err("allowed: a port from 1 to 65535".to_owned()),
        addr => Ok(addr),
    }
}

/// Writes the files and says what to do with them. Never overwrites.
pub(crate) fn run(args: &InitArgs) -> Result<(), Failure> {
    let dir = camino::absolute_utf8(&args.dir)
        .map_err(|error| Failure::run(&format!("{}", args.dir), error))?;
    let token = random_token()?;
    let mut files = vec![
        File::secret(CONFIG, config(args, &dir, &token)),
        File::secret(CLIENT_TOKEN, format!("{token}\n")),
    ];
    if args.tls {
        let made = Certificates::make(&certificate_names(args))?;
        files.push(File::public(CA, made.ca));
        files.push(File::public(CERT, made.cert));
        files.push(File::secret(KEY, made.key));
    }
    write_all(&dir, &files)?;
    print(&instructions(args, &dir))
        .map_err(|error| Failure::run("cannot write to standard output", error))
}

fn print(text: &str) -> std::io::Result<()> {
    use std::io::Write;
    let mut out = std::io::stdout().lock();
    out.write_all(text.as_bytes())?;
    out.flush()
}

/// 256 bits as hex digits: they need no quotes anywhere.
fn random_token() -> Result<String, Failure> {
    let mut bytes = [0; 32];
    getrandom::fill(&mut bytes)
        .map_err(|error| Failure::run("the system has no random numbers", error))?;
    Ok(bytes.iter().fold(String::new(), |mut text, byte| {
        let _ = write!(text, "{byte:02x}");
        text
    }))
}

/// Paths in it are absolute, so that the broker can be started from anywhere.
fn config(args: &InitArgs, dir: &Utf8Path, token: &str) -> String {
    let string = |text: &str| toml::Value::String(text.to_owned()).to_string();
    let path = |name: &str| string(dir.join(name).as_str());
    let mut text = format!(
        "# A Ticketing broker. `ticketing serve --help` and the README explain every key.\n\
         listen = {}\n\
         data_dir = {}\n\
         client_tokens = [{}]\n",
        string(&args.listen.to_string()),
        path("data"),
        string(token),
    );
    if args.tls {
        let _ = write!(
            text,
            "\n[tls]\ncert = {}\nkey = {}\n",
            path(CERT),
            path(KEY)
        );
    }
    text
}

/// The names asked for, and the address that the broker listens on unless that is any.
fn certificate_names(args: &InitArgs) -> Vec<String> {
    let mut names = args.names.clone();
    if !args.listen.ip().is_unspecified() {
        names.push(args.listen.ip().to_string());
    }
    names.sort_unstable();
    names.dedup();
    names
}

/// Where clients reach the broker: no name leads to one that listens on loopback.
fn client_address(args: &InitArgs) -> String {
    let (ip, port) = (args.listen.ip(), args.listen.port());
    match args.names.first() {
        Some(name) if !ip.is_loopback() && name.contains(':') => format!("[{name}]:{port}"),
        Some(name) if !ip.is_loopback() => format!("{name}:{port}"),
        None if ip.is_unspecified() => format!("localhost:{port}"),
        _ => args.listen.to_string(),
    }
}

fn instructions(args: &InitArgs, dir: &Utf8Path) -> String {
    let address = client_address(args);
    let (tls_env, tls_rust) = if args.tls {
        let ca = dir.join(CA);
        (
            format!(
                "  export TICKETING_TLS={}\n",
                shell_word(&format!("ca:{ca}"))
            ),
            format!("      .tls(TlsMode::Ca({:?}.into()))\n", ca.as_str()),
        )
    } else {
        Default::default()
    };
    let mut note = String::new();
    if args.tls {
        let _ = write!(
            note,
            "The certificates are valid for {VALID_DAYS} days. The key of the CA is kept nowhere: for another\n\
             certificate, init another folder.\n\n"
        );
    }
    if !args.names.is_empty() && args.listen.ip().is_loopback() {
        let _ = write!(
            note,
            "It listens on {} alone. For clients on other machines, change listen in broker.toml.\n\n",
            args.listen
        );
    }
    let imports = if args.tls {
        "{TicketBroker, TlsMode}"
    } else {
        "TicketBroker"
    };
    let token = dir.join(CLIENT_TOKEN);
    format!(
        "The broker's files are in {dir}.\n\n{note}\
         Start the broker:\n\n  ticketing serve --config {config}\n\n\
         Connect from a shell:\n\n  export TICKETING_ADDRS={address}\n  \
         export TICKETING_CLIENT_TOKEN_FILE={token_word}\n{tls_env}  \
         ticketing bench --ops 1000\n\n\
         Connect from Rust:\n\n  \
         use ticketing_client::{imports};\n\n  \
         let token = std::fs::read_to_string({token:?})?;\n  \
         let broker = TicketBroker::builder()\n      \
         .addrs([{address:?}])\n      \
         .token(token.trim_end())\n{tls_rust}      \
         .connect()?;\n",
        config = shell_word(dir.join(CONFIG).as_str()),
        token_word = shell_word(token.as_str()),
        token = token.as_str(),
    )
}

/// A word for a POSIX shell.
fn shell_word(text: &str) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || "/._-:+,@%".contains(c);
    if text.chars().all(plain) {
        text.to_owned()
    } else {
        format!("'{}'", text.replace('\'', r"'\''"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_word_for_the_shell_is_quoted_where_it_has_to_be() {
        assert_eq!(shell_word("/srv/ticketing"), "/srv/ticketing");
        assert_eq!(shell_word("/my files/it's"), r"'/my files/it'\''s'");
        assert_eq!(shell_word("$HOME"), "'$HOME'");
    }

    #[test]
    fn the_clients_address_is_one_that_the_certificate_names() {
        for (listen, names, address) in [
            ("127.0.0.1:5225", vec![], "127.0.0.1:5225"),
            ("127.0.0.1:7", vec!["b.example"], "127.0.0.1:7"),
            ("127.0.0.2:7", vec![], "127.0.0.2:7"),
            ("10.0.0.1:7", vec![], "10.0.0.1:7"),
            ("0.0.0.0:7", vec![], "localhost:7"),
            ("[::]:7", vec!["b.example", "10.0.0.1"], "b.example:7"),
            ("[::]:7", vec!["fd00::1"], "[fd00::1]:7"),
        ] {
            let args = InitArgs {
                tls: true,
                names: names.into_iter().map(str::to_owned).collect(),
                listen: listen.parse().unwrap(),
                dir: "d".into(),
            };
            assert_eq!(client_address(&args), address);
            let host = address.rsplit_once(':').unwrap().0.trim_matches(['[', ']']);
            let named = certificate_names(&args);
            assert!(
                host == "localhost" || named.iter().any(|n| n == host),
                "{host}"
            );
        }
    }

    #[test]
    fn two_tokens_differ() {
        let [one, other] = [random_token().unwrap(), random_token().unwrap()];
        assert_ne!(one, other);
        assert_eq!(one.len(), 64);
    }
}
