//! Scenarios, as `scenarios/*.toml` hold them.

use std::path::Path;

use anyhow::{Context, Result, ensure};
use serde::Deserialize;
use serde_json::{Map, Value};

/// One file: scenarios of one topic.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    scenario: Vec<Scenario>,
}

/// What a package must do in one situation.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Scenario {
    /// Unique among all.
    pub name: String,
    /// The clauses of `semantics.md` that it covers.
    pub clauses: Vec<String>,
    /// What a face must be able to do for it.
    #[serde(default)]
    pub needs: Vec<String>,
    /// Runs alone: it stops the process or stalls what resumes the callers.
    #[serde(default)]
    pub alone: bool,
    /// Releases are answered by the scenario's own steps, not with `R`/`G` at once.
    #[serde(default)]
    pub releases_by_hand: bool,
    /// The scripted broker goes on sending for a moment after the client's half-close.
    #[serde(default)]
    pub lingers: bool,
    /// The scripted broker rejects every client token.
    #[serde(default)]
    pub reject: bool,
    /// How many nodes the cluster has; 0 is a single broker.
    #[serde(default)]
    pub nodes: u8,
    /// No broker object is made before the first step, and none is closed at the end.
    #[serde(default)]
    pub no_connect: bool,
    /// Fields of `connect`.
    #[serde(default)]
    pub connect: Map<String, Value>,
    /// What happens, in order.
    pub steps: Vec<Step>,
}

/// One step of a scenario.
#[derive(Debug, Clone, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Step {
    /// The testee is told to do something; the answer is looked at by `answer`.
    Call {
        /// The scenario's name for it.
        id: String,
        /// The op of `PROTOCOL.md`.
        op: String,
        /// So many of them at once, each with its number appended to `id`, which is its ticket's
        /// name and its key too.
        #[serde(default)]
        times: u32,
        /// Its other fields.
        #[serde(flatten)]
        fields: Map<String, Value>,
    },
    /// The answer of a call.
    Answer(Expected),
    /// No answer of a call for so long.
    NoAnswer {
        /// The call.
        of: String,
        /// For how long.
        ms: u64,
    },
    /// A request reaches the broker.
    Expect(Frame),
    /// No acquire reaches the broker for so long.
    ExpectNoAcquire {
        /// For how long.
        ms: u64,
    },
    /// The broker answers a request.
    Reply(Reply),
    /// The broker sends bytes on the session that carried a request.
    Send {
        /// The request.
        on: String,
        /// The bytes.
        hex: String,
    },
    /// The broker ends the session that carried a request.
    End {
        /// The request.
        on: String,
        /// `close`, `reset` or `half` (its sending side alone).
        how: String,
    },
    /// The client shuts down its sending side, or closes the session, that carried a request.
    ExpectEnd {
        /// The request.
        on: String,
    },
    /// A node says who leads.
    Leader {
        /// The node.
        node: u8,
        /// The leader's slot; 255 for none.
        slot: u8,
    },
    /// So many sessions are there and authenticated.
    ExpectSessions(usize),
    /// Nothing happens for so long.
    Pause {
        /// For how long.
        ms: u64,
    },
    /// The testee's process is stopped for so long.
    Stop {
        /// For how long.
        ms: u64,
    },
    /// Acquires that are cancelled around the delivery of their grants, judged by the ledger.
    Storm {
        /// How many.
        rounds: u32,
    },
    /// Acquires that are released, dropped and cancelled leave nothing behind in the process.
    Leak {
        /// How many.
        rounds: u32,
    },
}

/// What a call must answer. What is not named may be anything.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Expected {
    /// The call.
    pub of: String,
    /// As for the call.
    #[serde(default)]
    pub times: u32,
    /// Its values.
    pub ok: Option<Map<String, Value>>,
    /// The kinds that the error may have, separated by `|`.
    pub error: Option<String>,
    /// The error's fields.
    #[serde(default)]
    pub fields: Map<String, Value>,
    /// What its message must contain.
    pub says: Option<String>,
    /// Not before so long after the call.
    #[serde(default)]
    pub after_ms: u64,
    /// Within so long of this step.
    pub within_ms: Option<u64>,
}

/// A request that must come next, of its kind.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Frame {
    /// `A`, `S`, `R` or `G`.
    pub frame: String,
    /// The scenario's name for it.
    #[serde(rename = "as")]
    pub name: String,
    /// Its keys.
    pub keys: Option<Vec<String>>,
    /// The calls that it comes from, by the key that `times` gave them.
    pub of: Option<String>,
    /// Its wait on the wire.
    pub wait: Option<u8>,
    /// Its lease on the wire.
    pub lease: Option<u8>,
    /// Its token.
    pub token: Option<String>,
    /// Comes on the session of this request; or, with a `!` before it, on another.
    pub on: Option<String>,
    /// Comes at this node.
    pub node: Option<u8>,
    /// So many of them, each with its number appended to its name.
    #[serde(default)]
    pub times: u32,
    /// Within so long.
    pub within_ms: Option<u64>,
}

/// An answer of the broker's.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Reply {
    /// The request that it answers.
    pub to: String,
    /// `A`, `S`, `T`, `B`, `R`, `G`, `N`, `M`, `I`, `E`.
    pub frame: String,
    /// The token of `A` and `S`; one of the scenario's own if left out.
    pub token: Option<String>,
    /// The code of `E`.
    #[serde(default)]
    pub code: u8,
    /// The slot of `M`.
    #[serde(default)]
    pub slot: u8,
    /// So many of them, as the requests.
    #[serde(default)]
    pub times: u32,
    /// Sent in two halves, the second so much later.
    #[serde(default)]
    pub halves_ms: u64,
}

/// All scenarios of a folder, in the order of files and lines.
///
/// # Errors
/// A file can't be read, is no list of scenarios, or a name is there twice.
pub fn load(folder: &Path) -> Result<Vec<Scenario>> {
    let mut files: Vec<_> = std::fs::read_dir(folder)
        .with_context(|| format!("reading {}", folder.display()))?
        .map(|entry| Ok(entry?.path()))
        .collect::<Result<_>>()?;
    files.retain(|file| {
        file.extension()
            .is_some_and(|extension| extension == "toml")
    });
    files.sort();
    let mut all: Vec<Scenario> = Vec::new();
    for file in files {
        let text = std::fs::read_to_string(&file)?;
        let file: File = toml::from_str(&text).with_context(|| file.display().to_string())?;
        all.extend(file.scenario);
    }
    for (at, scenario) in all.iter().enumerate() {
        let twice = all[..at].iter().any(|other| other.name == scenario.name);
        ensure!(!twice, "{:?} is there twice", scenario.name);
    }
    Ok(all)
}
