//! Everything that measurements need, prepared when the first one asks for it.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fmt;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::Result;
use serde_json::Value;

use super::figures::{Figure, Needs};
use super::hostile::Findings;
use super::mlx_lm::MlxLm;
use super::mode::Mode;
use super::programs::Build;
use super::serving::{OurServer, Serving};
use super::side::{Answer, Side};
use super::{llama_server, mlx_lm, programs, report, trace};
use crate::cache::Cache;
use crate::model::Model;
use crate::setup::{self, Installed};
use crate::{process, ui, workspace};

/// Pairs of turns, or samples, of each figure.
const ROUNDS: usize = 9;

/// Name of our server's model.
const OUR_MODEL: &str = "ours";

/// Both sides, and how much to measure.
pub(super) struct Workbench {
    quick: bool,
    cache: Cache,
    mlx: Mlx,
    ours: Option<Side>,
    modes: BTreeMap<Mode, Side>,
    mlx_lm: Option<Side>,
    cache_core: Option<Side>,
    scheduler: Option<Side>,
    pager: Option<Side>,
    recovery: Option<Side>,
    load_generator: Option<PathBuf>,
    our_server: Option<Serving>,
    /// Our server on another model.
    other_server: Option<Serving>,
    mlx_lm_server: Option<Serving>,
    llama_server: Option<Serving>,
    /// Each model on our side and on llama.cpp's.
    duels: Vec<Duel>,
    /// File in which the load generator reports its loads.
    loads: PathBuf,
    /// Result of the trace's replay, once it has been replayed.
    replayed_trace: Option<Value>,
    /// Results of the hostile clients, once they are measured: several figures read them.
    pub(super) hostile: Findings,
    /// Why these are not available, once that is known.
    no_mlx_lm: Option<Unavailable>,
    no_cache_core: Option<Unavailable>,
}

/// Argument of `benches/figures/` for a model with exact products.
const EXACT: &str = "--serve-exact";

/// The server that ours is measured against.
#[derive(Clone, Copy, Debug)]
pub(super) enum Peer {
    MlxLm,
    LlamaServer,
}

/// One file on our side and on llama.cpp's.
struct Duel {
    model: Model,
    ours: Side,
    /// Ours with exact products.
    exact: Option<Side>,
    theirs: Side,
    /// The server behind `theirs`.
    _server: Serving,
}

/// A requirement of a figure is not available on this machine. The figure is skipped.
#[derive(Clone, Debug)]
pub(super) struct Unavailable(pub(super) String);

enum Mlx {
    NotAsked,
    Missing(Unavailable),
    Ready(Ready),
}

struct Ready {
    model: PathBuf,
    blas_preload: Option<PathBuf>,
}

impl Workbench {
    /// Sets MLX up and fetches the model where any figure needs them.
    pub(super) fn open(quick: bool, with_mlx: bool) -> Result<Self> {
        let cache = Cache::open()?;
        let mlx = match with_mlx.then(|| set_mlx_up(&cache)) {
            None => Mlx::NotAsked,
            Some(Ok(ready)) => Mlx::Ready(ready),
            Some(Err(error)) => Mlx::Missing(Unavailable(format!("no MLX: {error:#}"))),
        };
        Ok(Self {
            quick,
            cache,
            mlx,
            ours: None,
            modes: BTreeMap::new(),
            mlx_lm: None,
            cache_core: None,
            scheduler: None,
            pager: None,
            recovery: None,
            load_generator: None,
            our_server: None,
            other_server: None,
            mlx_lm_server: None,
            llama_server: None,
            duels: Vec::new(),
            loads: report::folder()?.join("load.json"),
            replayed_trace: None,
            hostile: Findings::default(),
            no_mlx_lm: None,
            no_cache_core: None,
        })
    }

    /// The full size of a measurement, or the quick one that only shows that it works.
    pub(super) fn pick(&self, full: usize, quick: usize) -> usize {
        if self.quick { quick } else { full }
    }

    /// Number of rounds of a measurement.
    pub(super) fn rounds(&self) -> usize {
        self.pick(ROUNDS, 1)
    }

    /// Fails when the figure cannot be measured on this machine.
    pub(super) fn check(&self, figure: &Figure) -> Result<()> {
        match &self.mlx {
            Mlx::Missing(why) => match figure.needs {
                Needs::Nothing => Ok(()),
                Needs::Model if self.quick => Ok(()),
                Needs::Mlx | Needs::Model => Err(why.clone().into()),
            },
            Mlx::NotAsked | Mlx::Ready(_) => Ok(()),
        }
    }

    /// Our side: the model with exact products where MLX is set up, the oracle otherwise.
    pub(super) fn ours(&mut self) -> Result<&mut Side> {
        if self.ours.is_none() {
            self.ours = Some(self.start_ours()?);
        }
        Ok(self.ours.as_mut().expect("it was just started"))
    }

    /// Our side and mlx-lm's, both with the same model.
    pub(super) fn against_mlx_lm(&mut self) -> Result<(&mut Side, &mut Side)> {
        self.ours()?;
        if let Some(why) = &self.no_mlx_lm {
            return Err(why.clone().into());
        }
        if self.mlx_lm.is_none() {
            let started = self.start_mlx_lm();
            if let Err(error) = &started {
                self.no_mlx_lm = error.downcast_ref().cloned();
            }
            self.mlx_lm = Some(started?);
        }
        let ours = self.ours.as_mut().expect("it was just started");
        Ok((ours, self.mlx_lm.as_mut().expect("it was just started")))
    }

    /// Our side as it is by default, with the model.
    pub(super) fn by_default(&mut self) -> Result<&mut Side> {
        Ok(self.against_exact(Mode::Default)?.0)
    }

    /// Our side in this mode, and with exact products.
    pub(super) fn against_exact(&mut self, mode: Mode) -> Result<(&mut Side, &mut Side)> {
        self.ours()?;
        if !self.modes.contains_key(&mode) {
            let Mlx::Ready(ready) = &self.mlx else {
                return Err(Unavailable("no MLX".to_owned()).into());
            };
            let mut command = Command::new(programs::figures(self.build())?);
            command.args(mode.arguments()).arg(&ready.model);
            let log = report::folder()?.join(format!("ours-{mode}.log"));
            let side = Side::start("our side in another mode", &mut command, &log)?;
            self.modes.insert(mode, side);
        }
        let ours = self.ours.as_mut().expect("it was just started");
        Ok((
            self.modes.get_mut(&mode).expect("it was just started"),
            ours,
        ))
    }

    /// Our side as it is by default and llama.cpp's, both with this model's file as it is.
    pub(super) fn against_llama(&mut self, model: Model) -> Result<(&mut Side, &mut Side)> {
        let duel = self.duel(model)?;
        Ok((&mut duel.ours, &mut duel.theirs))
    }

    /// Our side with exact products and llama.cpp's, both with this model's file.
    pub(super) fn exact_against_llama(&mut self, model: Model) -> Result<(&mut Side, &mut Side)> {
        let program = programs::figures(self.build())?;
        let file = model.ensure(&self.cache)?;
        let duel = self.duel(model)?;
        if duel.exact.is_none() {
            let mut command = Command::new(program);
            command.arg(EXACT).arg(file);
            let log = report::folder()?.join("ours-exact.log");
            duel.exact = Some(Side::start("our exact side", &mut command, &log)?);
        }
        let exact = duel.exact.as_mut().expect("it was just started");
        Ok((exact, &mut duel.theirs))
    }

    fn duel(&mut self, model: Model) -> Result<&mut Duel> {
        let known = |duel: &Duel| duel.model == model;
        if !self.duels.iter().any(known) {
            let duel = self.start_duel(model)?;
            // The memory of two large models is not needed at once.
            self.duels = vec![duel];
        }
        let duel = self.duels.iter_mut().find(|duel| duel.model == model);
        Ok(duel.expect("it was just started"))
    }

    /// The cache's core, with kvbm-logical beside it.
    pub(super) fn cache_core(&mut self) -> Result<&mut Side> {
        if let Some(why) = &self.no_cache_core {
            return Err(why.clone().into());
        }
        if self.cache_core.is_none() {
            let started = start_cache_core(self.quick);
            if let Err(error) = &started {
                self.no_cache_core = error.downcast_ref().cloned();
            }
            self.cache_core = Some(started?);
        }
        Ok(self.cache_core.as_mut().expect("it was just started"))
    }

    /// The answer of the scheduler's program. The same request is sent only once.
    pub(super) fn scheduler(&mut self, request: &Value) -> Result<Answer> {
        if self.scheduler.is_none() {
            let program = programs::scheduler(self.build())?;
            let side = self.start("the scheduler's program", program, "scheduler.log")?;
            self.scheduler = Some(side);
        }
        let side = self.scheduler.as_mut().expect("it was just started");
        side.ask_once(request)
    }

    /// The answer of the pager's program. The same request is sent only once.
    pub(super) fn pager(&mut self, request: &Value) -> Result<Answer> {
        if self.pager.is_none() {
            let program = programs::pager(self.build())?;
            let side = self.start("the pager's program", program, "pager.log")?;
            self.pager = Some(side);
        }
        let side = self.pager.as_mut().expect("it was just started");
        side.ask_once(request)
    }

    /// The answer of the recovery's program. The same request is sent only once.
    pub(super) fn recovery(&mut self, request: &Value) -> Result<Answer> {
        if self.recovery.is_none() {
            let program = programs::recovery(self.build())?;
            // A smoke run's program is built without MLX.
            let model = self.model().filter(|_| !self.quick);
            let log = "recovery.log";
            self.recovery = Some(start("the recovery's program", program, model, log)?);
        }
        let side = self.recovery.as_mut().expect("it was just started");
        side.ask_once(request)
    }

    /// Whether this only checks that measuring works.
    pub(super) fn is_quick(&self) -> bool {
        self.quick
    }

    /// The load generator's report of a load on the oracle.
    pub(super) fn load_generator(&mut self, arguments: &[&str]) -> Result<Value> {
        self.build_load_generator()?;
        let program = self.load_generator.as_ref().expect("it was just built");
        let arguments = [&["--oracle", "--quiet"], arguments].concat();
        programs::report_of(program, "load_generator", &arguments)
    }

    /// The load generator, our server, and the place of the load reports. The server has the
    /// model, or the oracle in a quick run.
    pub(super) fn server(&mut self) -> Result<(&Path, &Serving, &Path)> {
        self.start_our_server()?;
        let generator = self.load_generator.as_ref().expect("it was just built");
        let server = self.our_server.as_ref().expect("it was just started");
        Ok((generator, server, &self.loads))
    }

    /// The load generator, our server, the peer's, and the place of the load reports.
    pub(super) fn servers(&mut self, peer: Peer) -> Result<(&Path, &Serving, &Serving, &Path)> {
        match peer {
            Peer::MlxLm if self.mlx_lm_server.is_none() => {
                self.mlx_lm_server = Some(self.start_mlx_lm_server()?);
            }
            Peer::LlamaServer if self.llama_server.is_none() => {
                self.llama_server = Some(self.start_llama_server()?);
            }
            Peer::MlxLm | Peer::LlamaServer => {}
        }
        self.start_our_server()?;
        let generator = self.load_generator.as_ref().expect("it was just built");
        let ours = self.our_server.as_ref().expect("it was just started");
        let theirs = match peer {
            Peer::MlxLm => &self.mlx_lm_server,
            Peer::LlamaServer => &self.llama_server,
        };
        let theirs = theirs.as_ref().expect("it was just started");
        Ok((generator, ours, theirs, &self.loads))
    }

    /// Hit rates on a trace of real requests.
    pub(super) fn replayed_trace(&mut self) -> Result<&Value> {
        if self.replayed_trace.is_none() {
            let trace = trace::find()?;
            let trace = trace.to_string_lossy();
            let arguments = ["--quiet", "--policy", trace::POLICIES, "--trace", &trace];
            let replayed = programs::example(trace::EXAMPLE, self.build(), &arguments)?;
            self.replayed_trace = Some(replayed);
        }
        Ok(self.replayed_trace.as_ref().expect("it was just replayed"))
    }

    /// Programs that need no MLX are built with it too where others need it, so that one build
    /// serves all.
    fn build(&self) -> Build {
        Build {
            with_mlx: matches!(self.mlx, Mlx::Ready(_)),
            quick: self.quick,
        }
    }

    fn build_load_generator(&mut self) -> Result<()> {
        if self.load_generator.is_none() {
            let program = programs::package("motet-load-generator", self.build())?;
            self.load_generator = Some(program);
        }
        Ok(())
    }

    fn start_our_server(&mut self) -> Result<()> {
        self.build_load_generator()?;
        if self.our_server.is_some() {
            return Ok(());
        }
        let log = report::folder()?.join("server.log");
        self.our_server = Some(self.our_server_to_start()?.start(&log)?);
        Ok(())
    }

    /// Whether our server has the model, and not the oracle.
    pub(super) fn serves_model(&self) -> bool {
        matches!(self.mlx, Mlx::Ready(_)) && !self.quick
    }

    /// Builds our server, for the model, or for the oracle in a quick run.
    pub(super) fn our_server_to_start(&self) -> Result<OurServer> {
        match &self.mlx {
            Mlx::Ready(ready) if self.serves_model() => {
                self.our_server_with(["--model".into(), ready.model.clone().into()])
            }
            _ => self.our_server_on_oracle(),
        }
    }

    /// Builds our server for the oracle.
    pub(super) fn our_server_on_oracle(&self) -> Result<OurServer> {
        self.our_server_with(["--oracle".into()])
    }

    fn our_server_with<const N: usize>(&self, served: [OsString; N]) -> Result<OurServer> {
        let program = programs::package("motet-server", self.build())?;
        let mut arguments = Vec::from(served);
        arguments.extend(["--name".into(), OUR_MODEL.into()]);
        Ok(OurServer {
            program,
            arguments,
            model: OUR_MODEL,
        })
    }

    /// Our server to start on another model, and that model's file. Any server that runs is
    /// ended.
    pub(super) fn server_of(&mut self, model: Model) -> Result<(OurServer, PathBuf)> {
        llama_server::find()?;
        self.duels.clear();
        self.our_server = None;
        let file = model.ensure(&self.cache)?;
        let mut server = self.our_server_to_start()?;
        server.arguments = ["--model".into(), file.clone().into()].to_vec();
        server.arguments.extend(["--name".into(), OUR_MODEL.into()]);
        Ok((server, file))
    }

    /// Starts that server, and returns the load generator, the server and the place of load
    /// reports. The server is ended when this returns the next time.
    pub(super) fn started(&mut self, server: &OurServer) -> Result<(&Path, &Serving, &Path)> {
        self.build_load_generator()?;
        self.other_server = None;
        let log = report::folder()?.join("other-server.log");
        self.other_server = Some(server.start(&log)?);
        let generator = self.load_generator.as_ref().expect("it was just built");
        let started = self.other_server.as_ref().expect("it was just started");
        Ok((generator, started, &self.loads))
    }

    /// Ends the server on another model, if it runs.
    pub(super) fn end_other_server(&mut self) {
        self.other_server = None;
    }

    fn start_mlx_lm_server(&self) -> Result<Serving> {
        let (mlx_lm, ready, weights) = self.mlx_lm()?;
        let folder = report::folder()?.join("mlx-lm-model");
        let preload = ready.blas_preload.as_deref();
        let mut command = mlx_lm.server(&weights, &ready.model, &folder, preload);
        let log = report::folder()?.join("mlx-lm-server.log");
        // The name by which the server knows the model that it was started with.
        let started = Serving::start("mlx-lm's server", "default_model", &mut command, &log);
        started.map_err(|error| Unavailable(format!("{error:#}")).into())
    }

    fn start_duel(&self, model: Model) -> Result<Duel> {
        let program = llama_server::find()?;
        let Mlx::Ready(_) = &self.mlx else {
            return Err(Unavailable("no MLX".to_owned()).into());
        };
        let file = model.ensure(&self.cache)?;
        let mut command = llama_server::command(&program, &file)?;
        let log = report::folder()?.join("llama-server.log");
        let server = Serving::start("llama-server", "default_model", &mut command, &log)?;
        let script = workspace::root().join("xtask/bench/llama_peer.py");
        let mut peer = Command::new("python3");
        peer.arg(script)
            .arg(format!("http://127.0.0.1:{}", server.port()));
        let log = report::folder()?.join("llama-peer.log");
        let theirs = Side::start("llama.cpp", &mut peer, &log)?;
        let ours = programs::figures(self.build())?;
        Ok(Duel {
            model,
            ours: start("our side", ours, Some(&file), "ours.log")?,
            exact: None,
            theirs,
            _server: server,
        })
    }

    fn start_llama_server(&self) -> Result<Serving> {
        let program = llama_server::find()?;
        let Mlx::Ready(ready) = &self.mlx else {
            return Err(Unavailable("no MLX".to_owned()).into());
        };
        let mut command = llama_server::command(&program, &ready.model)?;
        let log = report::folder()?.join("llama-server.log");
        // The server has only the model that it was started with, and accepts any name for it.
        Serving::start("llama-server", "default_model", &mut command, &log)
    }

    /// mlx-lm, and the weights for it.
    fn mlx_lm(&self) -> Result<(MlxLm, &Ready, PathBuf)> {
        let Mlx::Ready(ready) = &self.mlx else {
            return Err(Unavailable("no MLX".to_owned()).into());
        };
        let weights = mlx_lm::weights(
            &self.cache,
            || programs::figures(self.build()),
            &ready.model,
        )?;
        let mlx_lm = mlx_lm::install(&self.cache)
            .map_err(|error| Unavailable(format!("mlx-lm cannot be installed: {error:#}")))?;
        let weights = match mlx_lm::bits()? {
            Some(bits) => mlx_lm.quantised(&self.cache, &weights, bits)?,
            None => weights,
        };
        Ok((mlx_lm, ready, weights))
    }

    fn start_ours(&self) -> Result<Side> {
        let program = programs::figures(self.build())?;
        let quantised = match (&self.mlx, mlx_lm::bits()?) {
            (Mlx::Ready(_), Some(_)) => Some(self.mlx_lm()?.2),
            _ => None,
        };
        let task = ui::Task::start("load our side");
        let model = quantised.as_deref().or_else(|| self.model());
        let mut command = Command::new(program);
        match model {
            Some(model) => command.arg(EXACT).arg(model),
            None => command.arg("--serve"),
        };
        // The quantised folder holds weights only.
        if let (Some(_), Some(model)) = (&quantised, self.model()) {
            command.arg("--text").arg(model);
        }
        let side = Side::start(
            "our side",
            &mut command,
            &report::folder()?.join("ours.log"),
        )?;
        task.done();
        Ok(side)
    }

    /// Starts a program of ours: with the model where MLX is set up.
    fn start(&self, name: &'static str, program: PathBuf, log: &str) -> Result<Side> {
        start(name, program, self.model(), log)
    }

    /// The model, where MLX is set up.
    fn model(&self) -> Option<&Path> {
        match &self.mlx {
            Mlx::Ready(ready) => Some(&ready.model),
            Mlx::NotAsked | Mlx::Missing(_) => None,
        }
    }

    fn start_mlx_lm(&self) -> Result<Side> {
        let (mlx_lm, ready, weights) = self.mlx_lm()?;
        let mut command = mlx_lm.peer(&weights, ready.blas_preload.as_deref());
        let task = ui::Task::start("load mlx-lm");
        let log = report::folder()?.join("mlx-lm.log");
        let side = Side::start("mlx-lm", &mut command, &log)
            .map_err(|error| Unavailable(format!("mlx-lm does not start: {error:#}")))?;
        task.done();
        let hello = side.hello();
        ui::note(&format!(
            "{} on mlx {}",
            hello.text("name")?,
            hello.text("mlx")?
        ));
        Ok(side)
    }
}

impl fmt::Display for Unavailable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Unavailable {}

/// Starts a program of ours, on the oracle where there is no model.
fn start(name: &'static str, program: PathBuf, model: Option<&Path>, log: &str) -> Result<Side> {
    let mut command = Command::new(program);
    command.arg("--serve").args(model);
    Side::start(name, &mut command, &report::folder()?.join(log))
}

fn start_cache_core(quick: bool) -> Result<Side> {
    let program = programs::cache_core(quick)?;
    let log = report::folder()?.join("cache-core.log");
    Side::start(
        "the cache's core",
        Command::new(program).arg("--serve"),
        &log,
    )
}

/// Shows where a step's time goes: composed of MLX's operations, and by our kernels.
pub(super) fn profile(quick: bool) -> Result<()> {
    let ready = set_mlx_up(&Cache::open()?)?;
    let with_mlx = true;
    let mut command = Command::new(programs::figures(Build { with_mlx, quick })?);
    command.arg("--profile").arg(&ready.model);
    if quick {
        command.arg("--quick");
    }
    process::run(&mut command)
}

fn set_mlx_up(cache: &Cache) -> Result<Ready> {
    let Installed { blas_preload, .. } = setup::install(cache, None)?;
    let model = Model::SmolLm2.ensure(cache)?;
    Ok(Ready {
        model,
        blas_preload,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unavailable_differs_from_failed() {
        let error = anyhow::Error::from(Unavailable("no network".into()));
        assert!(error.is::<Unavailable>());
        assert!(!anyhow::anyhow!("no network").is::<Unavailable>());
    }
}
