//! What the command line asks for.

/// The command line, read.
pub struct Options {
    pub n_rounds: usize,
    /// A tenth of the work and three rounds: to see that everything runs, not to quote.
    pub quick: bool,
    only: Option<Vec<String>>,
    profilers: Option<Vec<String>>,
}

impl Options {
    pub fn parse(args: impl Iterator<Item = String>) -> Result<Self, String> {
        let mut n_rounds = None;
        let mut options = Self {
            n_rounds: 0,
            quick: false,
            only: None,
            profilers: None,
        };
        let mut args = args;
        while let Some(arg) = args.next() {
            let mut value = || args.next().ok_or_else(|| format!("{arg} needs a value"));
            match arg.as_str() {
                "--rounds" => {
                    let text = value()?;
                    n_rounds = Some(
                        text.parse()
                            .ok()
                            .filter(|n| *n > 0)
                            .ok_or_else(|| format!("{text} is no number of rounds"))?,
                    );
                }
                "--only" => options.only = Some(list(&value()?)),
                "--profilers" => options.profilers = Some(list(&value()?)),
                "--quick" => options.quick = true,
                _ => return Err(format!("unknown argument {arg}")),
            }
        }
        options.n_rounds = n_rounds.unwrap_or(if options.quick { 3 } else { 9 });
        Ok(options)
    }

    pub fn wants_workload(&self, name: &str) -> bool {
        wants(&self.only, name)
    }

    pub fn wants_profiler(&self, name: &str) -> bool {
        wants(&self.profilers, name)
    }
}

fn list(text: &str) -> Vec<String> {
    text.split(',').map(str::to_owned).collect()
}

fn wants(names: &Option<Vec<String>>, name: &str) -> bool {
    names
        .as_ref()
        .is_none_or(|names| names.iter().any(|wanted| wanted == name))
}
