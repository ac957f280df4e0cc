package kernel

import (
	"context"

	"github.com/plumbline/plumbline/ops/netstate"
)

type ethtoolSockets struct{}

func (e *ethtoolSockets) close() error { return nil }

type ethtoolGroup struct{ link, class string }

func (o *observer) askEthtool(ctx context.Context, ask map[ethtoolGroup][]netstate.Ethtool) error {
	return nil
}

func (s *Sandbox) applyEthtool(ctx context.Context, c netstate.Change) error { return nil }
