//! Evaluates the tree of a template.

use std::collections::BTreeMap;

use serde_json::Value;

use super::functions;
use super::parse::{
    Operand, Pipeline, TemplateAction, TemplateBlock, TemplateCommand, TemplateNode,
};
use super::{Surroundings, TemplateError};

/// Most templates within each other: a template that includes itself has no end.
const MAX_DEPTH: usize = 50;

/// Evaluation of the templates of one chart.
pub(super) struct Evaluation<'a> {
    pub(super) blocks: &'a BTreeMap<String, TemplateBlock>,
    pub(super) surroundings: &'a dyn Surroundings,
}

/// Dot and variables.
struct EvaluationScope {
    dot: Value,
    /// The last one of a name holds. The first is `$`.
    variables: Vec<(String, Value)>,
    depth: usize,
}

/// An error whose place is known, or not yet.
enum EvaluationFailure {
    Placed(TemplateError),
    Reason(String),
}

impl From<String> for EvaluationFailure {
    fn from(reason: String) -> Self {
        Self::Reason(reason)
    }
}

impl From<&str> for EvaluationFailure {
    fn from(reason: &str) -> Self {
        Self::Reason(reason.to_owned())
    }
}

impl Evaluation<'_> {
    pub(super) fn render(&self, name: &str, data: &Value) -> Result<String, TemplateError> {
        self.include(name, data.clone(), 0)
            .map_err(|failure| match failure {
                EvaluationFailure::Placed(error) => error,
                EvaluationFailure::Reason(reason) => TemplateError {
                    file: name.to_owned(),
                    line: 1,
                    reason,
                },
            })
    }

    fn include(&self, name: &str, dot: Value, depth: usize) -> Result<String, EvaluationFailure> {
        if depth > MAX_DEPTH {
            return Err(format!("more than {MAX_DEPTH} templates within each other").into());
        }
        let block = self.blocks.get(name);
        let block = block.ok_or_else(|| format!("no template is called `{name}`"))?;
        let mut scope = EvaluationScope {
            variables: vec![(String::new(), dot.clone())],
            dot,
            depth,
        };
        let mut out = String::new();
        self.nodes(&block.nodes, &block.file, &mut scope, &mut out)?;
        Ok(out)
    }

    fn nodes(
        &self,
        nodes: &[TemplateNode],
        file: &str,
        scope: &mut EvaluationScope,
        out: &mut String,
    ) -> Result<(), EvaluationFailure> {
        // Variables end with the block that declares them.
        let outer = scope.variables.len();
        for node in nodes {
            let done = self.node(node, file, scope, out);
            done.map_err(|failure| match failure {
                EvaluationFailure::Reason(reason) => EvaluationFailure::Placed(TemplateError {
                    file: file.to_owned(),
                    line: node.line,
                    reason,
                }),
                placed @ EvaluationFailure::Placed(_) => placed,
            })?;
        }
        scope.variables.truncate(outer);
        Ok(())
    }

    fn node(
        &self,
        node: &TemplateNode,
        file: &str,
        scope: &mut EvaluationScope,
        out: &mut String,
    ) -> Result<(), EvaluationFailure> {
        match &node.action {
            TemplateAction::Text(text) => out.push_str(text),
            TemplateAction::Print(pipeline) => {
                out.push_str(&functions::text(&self.pipeline(pipeline, scope)?)?);
            }
            TemplateAction::Set {
                name,
                declare,
                value,
            } => {
                let value = self.pipeline(value, scope)?;
                if *declare {
                    scope.variables.push((name.clone(), value));
                } else {
                    let mut known = scope.variables.iter_mut().rev();
                    let variable = known.find(|(known, _)| known == name);
                    variable
                        .ok_or_else(|| format!("no variable is called ${name}"))?
                        .1 = value;
                }
            }
            TemplateAction::If {
                branches,
                otherwise,
            } => {
                for (condition, body) in branches {
                    if functions::is_true(&self.pipeline(condition, scope)?) {
                        return self.nodes(body, file, scope, out);
                    }
                }
                self.nodes(otherwise, file, scope, out)?;
            }
            TemplateAction::With {
                value,
                body,
                otherwise,
            } => {
                let value = self.pipeline(value, scope)?;
                match functions::is_true(&value) {
                    true => self.within(value, body, file, scope, out)?,
                    false => self.nodes(otherwise, file, scope, out)?,
                }
            }
            TemplateAction::Range { list, body } => match self.pipeline(list, scope)? {
                Value::Array(items) => {
                    for item in items {
                        self.within(item, body, file, scope, out)?;
                    }
                }
                Value::Null => {}
                _ => return Err("`range` needs a list".into()),
            },
        }
        Ok(())
    }

    /// Renders nodes with another dot.
    fn within(
        &self,
        dot: Value,
        nodes: &[TemplateNode],
        file: &str,
        scope: &mut EvaluationScope,
        out: &mut String,
    ) -> Result<(), EvaluationFailure> {
        let outer = std::mem::replace(&mut scope.dot, dot);
        let done = self.nodes(nodes, file, scope, out);
        scope.dot = outer;
        done
    }

    fn pipeline(
        &self,
        pipeline: &Pipeline,
        scope: &mut EvaluationScope,
    ) -> Result<Value, EvaluationFailure> {
        let mut result = None;
        for command in &pipeline.0 {
            result = Some(self.command(command, result, scope)?);
        }
        result.ok_or_else(|| "an expression is missing".into())
    }

    fn command(
        &self,
        command: &TemplateCommand,
        piped: Option<Value>,
        scope: &mut EvaluationScope,
    ) -> Result<Value, EvaluationFailure> {
        let mut arguments = Vec::new();
        for operand in &command.arguments {
            arguments.push(self.operand(operand, scope)?);
        }
        arguments.extend(piped);
        let path = match &command.head {
            Operand::Function(name) => return self.call(name, arguments, scope),
            Operand::Field(path) | Operand::Variable(_, path) => &path[..],
            _ => &[],
        };
        if let [.., owner, method] = path
            && let [argument] = &arguments[..]
        {
            let argument = argument.as_str().unwrap_or_default();
            if (&**owner, &**method) == ("Files", "Get") {
                return Ok(self.surroundings.file(argument).into());
            }
        }
        match arguments.is_empty() {
            true => self.operand(&command.head, scope),
            false => Err("a value has no arguments".into()),
        }
    }

    fn call(
        &self,
        name: &str,
        arguments: Vec<Value>,
        scope: &EvaluationScope,
    ) -> Result<Value, EvaluationFailure> {
        match (name, &arguments[..]) {
            ("include", [Value::String(template), dot]) => {
                let text = self.include(template, dot.clone(), scope.depth + 1)?;
                Ok(text.into())
            }
            ("lookup", [version, kind, namespace, name]) => {
                let word = |value: &Value| value.as_str().unwrap_or_default().to_owned();
                let [version, kind] = [word(version), word(kind)];
                let [namespace, name] = [word(namespace), word(name)];
                let found = self.surroundings.object(&version, &kind, &namespace, &name);
                Ok(found.unwrap_or_else(|| Value::Object(serde_json::Map::new())))
            }
            _ => Ok(functions::call(name, arguments)?),
        }
    }

    fn operand(
        &self,
        operand: &Operand,
        scope: &mut EvaluationScope,
    ) -> Result<Value, EvaluationFailure> {
        Ok(match operand {
            Operand::Function(name) => self.call(name, Vec::new(), scope)?,
            Operand::Field(path) => functions::field(&scope.dot, path)?,
            Operand::Variable(name, path) => {
                let mut known = scope.variables.iter().rev();
                let variable = known.find(|(known, _)| known == name);
                let (_, value) =
                    variable.ok_or_else(|| format!("no variable is called ${name}"))?;
                functions::field(value, path)?
            }
            Operand::Text(text) => text.clone().into(),
            Operand::Number(number) => (*number).into(),
            Operand::Boolean(boolean) => (*boolean).into(),
            Operand::Group(pipeline, path) => {
                functions::field(&self.pipeline(pipeline, scope)?, path)?
            }
        })
    }
}
