//! Makes the tree of a template.

use super::lex::{ParseFailure, TemplatePiece, TemplateToken, split};

/// A parsed file.
#[derive(Debug, Default)]
pub(super) struct ParsedFile {
    pub(super) body: TemplateBlock,
    /// `define`, by name.
    pub(super) defined: Vec<(String, TemplateBlock)>,
}

/// Nodes that are rendered one after the other.
#[derive(Debug, Default)]
pub(super) struct TemplateBlock {
    /// The file, for errors.
    pub(super) file: String,
    pub(super) nodes: Vec<TemplateNode>,
}

/// A node, with its line.
#[derive(Debug)]
pub(super) struct TemplateNode {
    pub(super) line: usize,
    pub(super) action: TemplateAction,
}

/// The action of a node.
#[derive(Debug)]
pub(super) enum TemplateAction {
    /// Copies text.
    Text(String),
    /// Prints a value.
    Print(Pipeline),
    /// Sets a variable, and declares it first if `declare` is set.
    Set {
        name: String,
        declare: bool,
        value: Pipeline,
    },
    /// Renders the first branch whose condition is true, else `otherwise`.
    If {
        branches: Vec<(Pipeline, Vec<TemplateNode>)>,
        otherwise: Vec<TemplateNode>,
    },
    /// Renders the body with the value as dot, unless it is empty.
    With {
        value: Pipeline,
        body: Vec<TemplateNode>,
        otherwise: Vec<TemplateNode>,
    },
    /// Renders the body for each element of a list.
    Range {
        list: Pipeline,
        body: Vec<TemplateNode>,
    },
}

/// Commands, of which each gets the result of the one before as its last argument.
#[derive(Debug)]
pub(super) struct Pipeline(pub(super) Vec<TemplateCommand>);

/// A function or a value, with arguments.
#[derive(Debug)]
pub(super) struct TemplateCommand {
    pub(super) head: Operand,
    pub(super) arguments: Vec<Operand>,
}

/// An operand.
#[derive(Debug)]
pub(super) enum Operand {
    Function(String),
    Field(Vec<String>),
    Variable(String, Vec<String>),
    Text(String),
    Number(i64),
    Boolean(bool),
    /// `( … )`, and fields of its value.
    Group(Pipeline, Vec<String>),
}

/// Parses a file.
pub(super) fn parse(source: &str) -> Result<ParsedFile, ParseFailure> {
    let mut parser = Parser {
        pieces: split(source)?.into_iter(),
        defined: Vec::new(),
        line: 1,
    };
    let (nodes, end) = parser.nodes()?;
    if let Some(end) = end {
        return Err((parser.line, format!("`{}` ends nothing", end.word)));
    }
    Ok(ParsedFile {
        body: TemplateBlock {
            file: String::new(),
            nodes,
        },
        defined: parser.defined,
    })
}

/// `end` or `else`, with the condition of the latter.
struct BlockEnd {
    word: String,
    rest: Vec<TemplateToken>,
}

struct Parser {
    pieces: std::vec::IntoIter<TemplatePiece>,
    defined: Vec<(String, TemplateBlock)>,
    /// Line of the last action.
    line: usize,
}

impl Parser {
    /// Nodes up to the end of the block or of the file.
    fn nodes(&mut self) -> Result<(Vec<TemplateNode>, Option<BlockEnd>), ParseFailure> {
        let mut nodes = Vec::new();
        while let Some(piece) = self.pieces.next() {
            let (tokens, line) = match piece {
                TemplatePiece::Text(text) => {
                    let line = self.line;
                    let action = TemplateAction::Text(text);
                    nodes.push(TemplateNode { line, action });
                    continue;
                }
                TemplatePiece::Action { tokens, line } => (tokens, line),
            };
            self.line = line;
            let keyword = match tokens.first() {
                Some(TemplateToken::Word(word)) => word.clone(),
                _ => String::new(),
            };
            let rest = tokens.get(1..).unwrap_or_default().to_vec();
            let action = match &*keyword {
                "end" | "else" => {
                    let word = keyword;
                    return Ok((nodes, Some(BlockEnd { word, rest })));
                }
                "define" => {
                    self.define(&rest)?;
                    continue;
                }
                "if" => self.branches(&rest)?,
                "with" => {
                    let value = self.pipeline(&rest)?;
                    let (body, otherwise) = self.body()?;
                    TemplateAction::With {
                        value,
                        body,
                        otherwise,
                    }
                }
                "range" => {
                    let list = self.pipeline(&rest)?;
                    let (body, otherwise) = self.body()?;
                    if !otherwise.is_empty() {
                        return Err((line, "`else` of `range` is not known here".to_owned()));
                    }
                    TemplateAction::Range { list, body }
                }
                _ => self.statement(&tokens)?,
            };
            nodes.push(TemplateNode { line, action });
        }
        Ok((nodes, None))
    }

    fn define(&mut self, rest: &[TemplateToken]) -> Result<(), ParseFailure> {
        let line = self.line;
        let [TemplateToken::Text(name)] = rest else {
            return Err((line, "`define` needs a name in quotes".to_owned()));
        };
        let (nodes, otherwise) = self.body()?;
        if !otherwise.is_empty() {
            return Err((line, "`define` has no `else`".to_owned()));
        }
        let file = String::new();
        self.defined
            .push((name.clone(), TemplateBlock { file, nodes }));
        Ok(())
    }

    /// The body of a block and that of its plain `else`.
    fn body(&mut self) -> Result<(Vec<TemplateNode>, Vec<TemplateNode>), ParseFailure> {
        let line = self.line;
        let open = || (line, "a block has no `end`".to_owned());
        let (body, end) = self.nodes()?;
        let end = end.ok_or_else(open)?;
        if end.word == "end" {
            return Ok((body, Vec::new()));
        }
        if !end.rest.is_empty() {
            return Err((self.line, "`else` has no condition here".to_owned()));
        }
        let (otherwise, end) = self.nodes()?;
        match end {
            Some(end) if end.word == "end" => Ok((body, otherwise)),
            _ => Err(open()),
        }
    }

    fn branches(&mut self, condition: &[TemplateToken]) -> Result<TemplateAction, ParseFailure> {
        let line = self.line;
        let open = || (line, "`if` has no `end`".to_owned());
        let mut branches = Vec::new();
        let mut condition = self.pipeline(condition)?;
        loop {
            let (body, end) = self.nodes()?;
            let end = end.ok_or_else(open)?;
            branches.push((condition, body));
            let mut otherwise = Vec::new();
            match end.rest.split_first() {
                Some((TemplateToken::Word(word), rest)) if end.word == "else" && word == "if" => {
                    condition = self.pipeline(rest)?;
                    continue;
                }
                Some(_) => return Err((self.line, "`else` is followed by `if` only".to_owned())),
                None if end.word == "else" => {
                    let (body, end) = self.nodes()?;
                    let end = end.ok_or_else(open)?;
                    if end.word != "end" {
                        return Err((self.line, "`else` is there twice".to_owned()));
                    }
                    otherwise = body;
                }
                None => {}
            }
            return Ok(TemplateAction::If {
                branches,
                otherwise,
            });
        }
    }

    fn statement(&self, tokens: &[TemplateToken]) -> Result<TemplateAction, ParseFailure> {
        if let [TemplateToken::Variable(name, fields), sign, rest @ ..] = tokens
            && matches!(sign, TemplateToken::Declare | TemplateToken::Assign)
            && fields.is_empty()
        {
            return Ok(TemplateAction::Set {
                name: name.clone(),
                declare: *sign == TemplateToken::Declare,
                value: self.pipeline(rest)?,
            });
        }
        Ok(TemplateAction::Print(self.pipeline(tokens)?))
    }

    fn pipeline(&self, tokens: &[TemplateToken]) -> Result<Pipeline, ParseFailure> {
        let mut rest = tokens;
        let pipeline = pipeline(&mut rest).map_err(|reason| (self.line, reason))?;
        match rest.first() {
            None => Ok(pipeline),
            Some(token) => Err((self.line, format!("{token:?} is not known here"))),
        }
    }
}

/// Reads a pipeline up to its end or to a closing parenthesis.
fn pipeline(rest: &mut &[TemplateToken]) -> Result<Pipeline, String> {
    let mut commands = Vec::new();
    loop {
        let mut operands = Vec::new();
        while let Some(operand) = operand(rest)? {
            operands.push(operand);
        }
        let mut operands = operands.into_iter();
        let head = operands.next().ok_or("an expression is missing")?;
        commands.push(TemplateCommand {
            head,
            arguments: operands.collect(),
        });
        match rest.split_first() {
            Some((TemplateToken::Pipe, after)) => *rest = after,
            _ => return Ok(Pipeline(commands)),
        }
    }
}

/// Reads the next operand of a command, if there is one.
fn operand(rest: &mut &[TemplateToken]) -> Result<Option<Operand>, String> {
    let Some((first, after)) = rest.split_first() else {
        return Ok(None);
    };
    let operand = match first.clone() {
        TemplateToken::Word(word) => match &*word {
            "true" | "false" => Operand::Boolean(word == "true"),
            _ => Operand::Function(word),
        },
        TemplateToken::Field(names) => Operand::Field(names),
        TemplateToken::Variable(name, names) => Operand::Variable(name, names),
        TemplateToken::Text(text) => Operand::Text(text),
        TemplateToken::Number(number) => Operand::Number(number),
        TemplateToken::Open => {
            *rest = after;
            let inside = pipeline(rest)?;
            let Some((TemplateToken::Close(names), after)) = rest.split_first() else {
                return Err("`(` is not closed".to_owned());
            };
            *rest = after;
            return Ok(Some(Operand::Group(inside, names.clone())));
        }
        TemplateToken::Close(_)
        | TemplateToken::Pipe
        | TemplateToken::Declare
        | TemplateToken::Assign
        | TemplateToken::Comma => {
            return Ok(None);
        }
    };
    *rest = after;
    Ok(Some(operand))
}
