package object

// ClearUp frees what no record refers to any more, now. Settle does it too.
func (e *Engine) ClearUp() { e.janitor.flush() }
