//! The interfaces as text to read: WIT of one world, and a reference in Markdown made from WIT.
//!
//! Knows nothing beyond the WIT files: their doc comments are the reference.

use std::fmt::Write;

use wit_parser::{Docs, InterfaceId, PackageId, Resolve, SourceMap, Type, TypeDefKind};

use crate::plugin::spec::World;
use crate::plugin::wit;

/// Order of the reference: what every plugin has, then role by role, then what may be imported.
const ORDER: [&str; 10] = [
    "lifecycle",
    "task",
    "task-stream",
    "billing",
    "pricing",
    "estimator",
    "routing",
    "log",
    "counters",
    "tables",
];

/// Worlds in the order of the reference. `pricing-formula` and `pricing-estimator` are configured as the
/// `billing` ones.
const WORLDS: [&str; 7] = [
    "task-schema",
    "task-schema-streaming",
    "billing-formula",
    "pricing-formula",
    "billing-estimator",
    "pricing-estimator",
    "routing-policy",
];

/// The files of one world, or of all: a comment with the name, then the text.
pub fn world_text(world: Option<World>) -> String {
    let needed: &[&str] = match world {
        None => &[
            "lifecycle",
            "task",
            "task-stream",
            "billing",
            "pricing",
            "estimator",
            "routing",
        ],
        Some(World::TaskSchema) => &["lifecycle", "task"],
        Some(World::TaskSchemaStreaming) => &["lifecycle", "task", "task-stream"],
        Some(World::BillingFormula) => &["lifecycle", "billing", "pricing"],
        Some(World::BillingEstimator) => &["lifecycle", "billing", "pricing", "estimator"],
        Some(World::RoutingPolicy) => &["lifecycle", "routing"],
    };
    let mut text = String::new();
    let find = |name: &str| {
        wit::PLUGIN
            .iter()
            .find(|(file, _)| file.strip_suffix(".wit") == Some(name))
    };
    let plugin = ["worlds"]
        .iter()
        .chain(needed)
        .filter_map(|name| find(name));
    for (folder, (name, body)) in plugin
        .map(|file| ("", file))
        .chain(wit::HOST.iter().map(|file| ("deps/host/", file)))
    {
        let _ = writeln!(text, "// {folder}{name}\n{}\n", body.trim_end());
    }
    text
}

/// The reference of both packages.
///
/// # Errors
/// Never for the files of this build; the parser's word otherwise.
pub fn wit_docs() -> Result<String, String> {
    let (resolve, package) = parsed()?;
    let mut text = String::from(
        "# The interfaces of plugins\n\nMade from the WIT files by `infergate plugin doc`; \
         `infergate plugin wit` prints those.\n\n## Worlds\n\nWhat a component of each world exports. \
         It may import `log`, `counters` and `tables`, each where the configuration grants it. A component of \
         `pricing-formula` is configured as `billing-formula`, one of `pricing-estimator` as `billing-estimator`.\n\n\
         | World | Exports |\n|---|---|\n",
    );
    for world in WORLDS {
        let id = resolve
            .select_world(&[package], Some(world))
            .map_err(|error| format!("{error:#}"))?;
        let exports = resolve.worlds[id].exports.keys();
        let names: Vec<String> = exports
            .map(|key| short(&resolve.name_world_key(key)))
            .collect();
        let names = ORDER
            .iter()
            .filter(|name| names.iter().any(|one| one == *name));
        let links = names.map(|name| format!("[`{name}`](#{name})"));
        let links: Vec<String> = links.collect();
        let _ = writeln!(text, "| `{world}` | {} |", links.join(", "));
    }
    for name in ORDER {
        let found = resolve
            .interfaces
            .iter()
            .find(|(_, one)| one.name.as_deref() == Some(name));
        if let Some((id, _)) = found {
            interface(&resolve, id, &mut text);
        }
    }
    Ok(text)
}

fn parsed() -> Result<(Resolve, PackageId), String> {
    let mut resolve = Resolve::default();
    let mut push = |files: &[(&str, &str)]| {
        let mut sources = SourceMap::default();
        for (name, text) in files {
            sources.push_str(name, *text);
        }
        let group = sources.parse().map_err(|(_, error)| error.to_string())?;
        resolve.push_group(group).map_err(|error| error.to_string())
    };
    push(wit::HOST)?;
    let package = push(wit::PLUGIN)?;
    Ok((resolve, package))
}

/// `billing` of `infergate:plugin/billing@1.0.0`.
fn short(name: &str) -> String {
    let name = name.split('/').next_back().unwrap_or(name);
    name.split('@').next().unwrap_or(name).to_owned()
}

fn interface(resolve: &Resolve, id: InterfaceId, text: &mut String) {
    let interface = &resolve.interfaces[id];
    let name = interface.name.as_deref().unwrap_or_default();
    let package = interface
        .package
        .map(|id| resolve.packages[id].name.to_string());
    let package = package.unwrap_or_default();
    let (package, version) = package.split_once('@').unwrap_or((&package, ""));
    let _ = write!(
        text,
        "\n## {name}\n\n`{package}/{name}@{version}`. {}\n",
        line(&interface.docs)
    );
    for function in interface.functions.values() {
        let params = function.params.iter();
        let params: Vec<String> = params
            .map(|param| format!("{}: {}", param.name, spelled(resolve, &param.ty)))
            .collect();
        let result = function
            .result
            .as_ref()
            .map(|ty| format!(" -> {}", spelled(resolve, ty)));
        let _ = write!(
            text,
            "\n### {}\n\n```wit\n{}: func({}){}\n```\n",
            function.name,
            function.name,
            params.join(", "),
            result.unwrap_or_default()
        );
        paragraph(&function.docs, text);
    }
    for (name, id) in &interface.types {
        let def = &resolve.types[*id];
        let _ = write!(text, "\n### {} `{name}`\n", def.kind.as_str());
        paragraph(&def.docs, text);
        members(resolve, &def.kind, text);
    }
}

fn members(resolve: &Resolve, kind: &TypeDefKind, text: &mut String) {
    let mut rows: Vec<(String, String, String)> = Vec::new();
    match kind {
        TypeDefKind::Record(record) => {
            for field in &record.fields {
                rows.push((
                    field.name.clone(),
                    spelled(resolve, &field.ty),
                    line(&field.docs),
                ));
            }
        }
        TypeDefKind::Variant(variant) => {
            for case in &variant.cases {
                let payload = case
                    .ty
                    .as_ref()
                    .map(|ty| spelled(resolve, ty))
                    .unwrap_or_default();
                rows.push((case.name.clone(), payload, line(&case.docs)));
            }
        }
        TypeDefKind::Enum(cases) => {
            let names: Vec<String> = cases
                .cases
                .iter()
                .map(|case| format!("`{}`", case.name))
                .collect();
            let _ = write!(text, "\n{}\n", names.join(", "));
        }
        TypeDefKind::Flags(flags) => {
            let names: Vec<String> = flags
                .flags
                .iter()
                .map(|flag| format!("`{}`", flag.name))
                .collect();
            let _ = write!(text, "\n{}\n", names.join(", "));
        }
        _ => {}
    }
    if !rows.is_empty() {
        let _ = write!(text, "\n| Name | Type | |\n|---|---|---|\n");
    }
    for (name, ty, docs) in rows {
        let ty = if ty.is_empty() { ty } else { format!("`{ty}`") };
        let _ = writeln!(text, "| `{name}` | {ty} | {docs} |");
    }
}

fn paragraph(docs: &Docs, text: &mut String) {
    if !docs.is_empty() {
        let _ = write!(text, "\n{}\n", line(docs));
    }
}

/// Doc comments in one line.
fn line(docs: &Docs) -> String {
    let words = docs
        .contents
        .as_deref()
        .unwrap_or_default()
        .split_whitespace();
    words.collect::<Vec<_>>().join(" ").replace('|', "\\|")
}

fn spelled(resolve: &Resolve, ty: &Type) -> String {
    let Type::Id(id) = ty else {
        return match ty {
            Type::ErrorContext => "error-context".to_owned(),
            ty => format!("{ty:?}").to_lowercase(),
        };
    };
    let def = &resolve.types[*id];
    if let Some(name) = &def.name {
        return name.clone();
    }
    let maybe = |ty: &Option<Type>| {
        ty.as_ref()
            .map_or("_".to_owned(), |ty| spelled(resolve, ty))
    };
    match &def.kind {
        TypeDefKind::List(of) => format!("list<{}>", spelled(resolve, of)),
        TypeDefKind::Option(of) => format!("option<{}>", spelled(resolve, of)),
        TypeDefKind::Result(of) => match &of.err {
            None => format!("result<{}>", maybe(&of.ok)),
            err => format!("result<{}, {}>", maybe(&of.ok), maybe(err)),
        },
        TypeDefKind::Tuple(of) => {
            let types: Vec<String> = of.types.iter().map(|ty| spelled(resolve, ty)).collect();
            format!("tuple<{}>", types.join(", "))
        }
        kind => kind.as_str().to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_reference_has_every_interface_with_its_types_spelled_as_in_wit() {
        let text = wit_docs().unwrap();
        for expected in [
            "price: func(tariff: tariff, usage: usage) -> result<charge, billing-error>",
            "| `deadline-ms` | `option<u32>` |",
            "| `metrics` | `list<tuple<string, f64>>` |",
            "| `billing-estimator` | [`lifecycle`](#lifecycle), [`billing`](#billing), [`estimator`](#estimator) |",
            "configure: func(settings: string) -> result<_, list<problem>>",
            "## tables",
        ] {
            assert!(text.contains(expected), "no {expected} in:\n{text}");
        }
    }

    #[test]
    fn the_text_of_a_world_has_its_interfaces_and_no_others() {
        let text = world_text(Some(World::BillingFormula));
        assert!(text.contains("interface billing") && text.contains("interface log"));
        assert!(!text.contains("interface routing"));
    }
}
