"""What is asked and what is answered: request, policy, verdict, decision, reason. Imports topology only."""
