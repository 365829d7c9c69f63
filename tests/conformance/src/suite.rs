//! The suite: every scenario against one face of one language.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use anyhow::{Context, Result, bail};
use serde::Deserialize;
use tokio::sync::Mutex;
use tokio::time::timeout;

use crate::play::play;
use crate::scenario::Scenario;
use crate::testee::{Program, Testee};

/// So many scenarios run at once against one testee.
const AT_ONCE: usize = 8;

/// A scenario that takes longer hangs.
const LONGEST: Duration = Duration::from_secs(90);

/// How a scenario ended for one face.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Verdict {
    /// As it must.
    Passed,
    /// Not so; why.
    Failed(String),
    /// It fails, and that is known; why.
    Known(String),
    /// The language has no such thing; why.
    NotApplicable(String),
}

/// What the data says of a language beside the scenarios.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Exceptions {
    /// `[[lack]]`: a capability that a face has not.
    #[serde(default)]
    pub lack: Vec<Lack>,
    /// `[[failure]]`: a scenario that is known to fail.
    #[serde(default)]
    pub failure: Vec<KnownFailure>,
}

/// A capability that a face of a language has not.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Lack {
    /// The language.
    pub language: String,
    /// The face; every one if left out.
    pub face: Option<String>,
    /// The capabilities.
    pub capabilities: Vec<String>,
    /// Why.
    pub reason: String,
}

/// A scenario that is known to fail for a language. It still runs.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct KnownFailure {
    /// The language.
    pub language: String,
    /// The scenario's name.
    pub scenario: String,
    /// Why.
    pub reason: String,
}

/// Reads a file of exceptions.
///
/// # Errors
/// It can't be read, or is none.
pub fn exceptions(file: &Path) -> Result<Exceptions> {
    let text = std::fs::read_to_string(file).with_context(|| file.display().to_string())?;
    toml::from_str(&text).with_context(|| file.display().to_string())
}

/// Runs scenarios against one face: a verdict for each, by name.
///
/// # Errors
/// The testee can't be started.
pub async fn run(
    program: &Program,
    scenarios: &[Scenario],
    lacks: &Exceptions,
    known: &Exceptions,
) -> Result<BTreeMap<String, Verdict>> {
    let face = Face {
        program,
        testee: Mutex::new(None),
        number: AtomicU64::new(1),
    };
    let first = face.testee().await?;
    let mut verdicts = BTreeMap::new();
    let (mut together, mut alone) = (Vec::new(), Vec::new());
    for scenario in scenarios {
        let can = &first.hello.capabilities;
        match scenario.needs.iter().find(|need| !can.contains(need)) {
            Some(need) => {
                let verdict = not_applicable(lacks, &first.hello.language, &program.face, need);
                verdicts.insert(scenario.name.clone(), verdict);
            }
            None if scenario.alone => alone.push(scenario),
            None => together.push(scenario),
        }
    }
    let language = first.hello.language.clone();
    drop(first);
    for chunk in together.chunks(AT_ONCE) {
        let plays = chunk.iter().map(|scenario| face.play(scenario));
        for (scenario, verdict) in chunk.iter().zip(join_all(plays).await) {
            verdicts.insert(scenario.name.clone(), verdict);
        }
        // One that hung took its neighbours along: those are played again, by themselves.
        for scenario in chunk {
            if is_collateral(&verdicts[&scenario.name]) {
                verdicts.insert(scenario.name.clone(), face.play(scenario).await);
            }
        }
    }
    for scenario in alone {
        verdicts.insert(scenario.name.clone(), face.play(scenario).await);
    }
    let ended = face.end().await;
    let clean = ended.map_or_else(|e| Verdict::Failed(format!("{e:#}")), |()| Verdict::Passed);
    verdicts.insert(CLEAN_END.to_owned(), clean);
    for failure in known.failure.iter().filter(|f| f.language == language) {
        let verdict = verdicts.get_mut(&failure.scenario);
        let verdict = verdict.with_context(|| format!("no scenario {:?}", failure.scenario))?;
        match verdict {
            Verdict::Failed(_) => *verdict = Verdict::Known(failure.reason.clone()),
            Verdict::Passed => *verdict = Verdict::Failed("known to fail, and it passed".into()),
            Verdict::Known(_) | Verdict::NotApplicable(_) => {}
        }
    }
    Ok(verdicts)
}

/// The last verdict of every face: its process ends by itself, with nothing left.
pub const CLEAN_END: &str = "the process ends cleanly";

fn not_applicable(lacks: &Exceptions, language: &str, face: &str, need: &str) -> Verdict {
    let lack = lacks.lack.iter().find(|lack| {
        lack.language == language
            && lack.face.as_deref().is_none_or(|of| of == face)
            && lack
                .capabilities
                .iter()
                .any(|capability| capability == need)
    });
    match lack {
        Some(lack) => Verdict::NotApplicable(lack.reason.clone()),
        None => Verdict::Failed(format!("it lacks {need:?}, without a reason")),
    }
}

fn is_collateral(verdict: &Verdict) -> bool {
    matches!(verdict, Verdict::Failed(why) if why.contains("the testee died") || why.contains("the testee is gone"))
}

struct Face<'a> {
    program: &'a Program,
    testee: Mutex<Option<std::sync::Arc<Testee>>>,
    number: AtomicU64,
}

impl Face<'_> {
    /// The running testee, started if there is none.
    async fn testee(&self) -> Result<std::sync::Arc<Testee>> {
        let mut testee = self.testee.lock().await;
        if let Some(testee) = &*testee {
            return Ok(std::sync::Arc::clone(testee));
        }
        let started = std::sync::Arc::new(Testee::start(self.program).await?);
        *testee = Some(std::sync::Arc::clone(&started));
        Ok(started)
    }

    async fn play(&self, scenario: &Scenario) -> Verdict {
        let testee = match self.testee().await {
            Ok(testee) => testee,
            Err(e) => return Verdict::Failed(format!("{e:#}")),
        };
        let number = self.number.fetch_add(1, Ordering::Relaxed);
        let why = match timeout(LONGEST, play(scenario, &testee, number)).await {
            Ok(Ok(())) => return Verdict::Passed,
            Ok(Err(e)) => format!("{e:#}"),
            Err(_) => "it hangs".to_owned(),
        };
        let hangs = why == "it hangs";
        let dead = why.contains("the testee died") || why.contains("the testee is gone");
        if hangs || dead {
            testee.kill().await;
            let mut current = self.testee.lock().await;
            if current
                .as_ref()
                .is_some_and(|now| std::sync::Arc::ptr_eq(now, &testee))
            {
                *current = None;
            }
        }
        let said = testee.said();
        let last = said.lines().last().unwrap_or_default();
        Verdict::Failed(match last.is_empty() {
            true => why,
            false => format!("{why} (it said: {last})"),
        })
    }

    async fn end(&self) -> Result<()> {
        match self.testee.lock().await.take() {
            Some(testee) => testee.finish().await,
            None => bail!("it is not running any more"),
        }
    }
}

/// All of them at once, in their order.
async fn join_all<F: Future>(futures: impl Iterator<Item = F>) -> Vec<F::Output> {
    let mut futures: Vec<_> = futures.map(|f| (Box::pin(f), None)).collect();
    std::future::poll_fn(|cx| {
        let mut waiting = false;
        for (future, output) in &mut futures {
            if output.is_none() {
                match future.as_mut().poll(cx) {
                    std::task::Poll::Ready(done) => *output = Some(done),
                    std::task::Poll::Pending => waiting = true,
                }
            }
        }
        match waiting {
            true => std::task::Poll::Pending,
            false => std::task::Poll::Ready(()),
        }
    })
    .await;
    let outputs = futures.into_iter().map(|(_, output)| output);
    outputs
        .map(|output| output.expect("all are done"))
        .collect()
}
